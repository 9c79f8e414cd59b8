// SPDX-License-Identifier: Apache-2.0
// The program, and beside each line what was decided of its statement.

// Which row a decision stands beside: that of its line, else the kernel's or the first that names its subject; -1: none.
function rowOf(decision, rows) {
  if (decision.line !== 0) {
    const at = rows.findIndex((row) => row.line === decision.line);
    if (at >= 0) return at;
  }
  const name = decision.subject.match(/^\w+/);
  if (name === null) return -1;
  const kernel = rows.findIndex((row) => row.text.trimStart().startsWith(`kernel @${name[0]} `));
  return kernel >= 0 ? kernel : rows.findIndex((row) => names(row.text, name[0]));
}

function names(text, name) {
  return new RegExp(`[%@]${name}(?!\\w)`).test(text);
}

// Wrapped lines go on under their own beginning.
function indent(text) {
  return text.length - text.trimStart().length;
}

// Equal decisions of one line (of copies that are repeated ahead of a loop) once, with their number.
function counted(decisions) {
  const found = new Map();
  for (const decision of decisions) {
    const key = JSON.stringify(decision);
    if (found.has(key)) found.get(key).times += 1;
    else found.set(key, { ...decision, times: 1 });
  }
  return [...found.values()];
}

function note(decision, choose) {
  const item = el("button", { class: "note", type: "button", click: choose },
    el("span", { class: "pass" }, decision.pass), " ", el("b", {}, decision.subject), " ", decision.decision,
    decision.times > 1 ? ` ×${decision.times}` : "",
    decision.reason === "" ? null : el("span", { class: "why" }, ` — ${decision.reason}`));
  return item;
}

function programPanel(panel) {
  const { rows, written, files } = data.program;
  const beside = rows.map(() => []);
  const homeless = [];
  for (const decision of counted(data.decisions)) {
    const at = rowOf(decision, rows);
    (at < 0 ? homeless : beside[at]).push(decision);
  }

  const notes = [];  // [element, decision, row]
  const lines = rows.map((row, index) => {
    const text = el("div", { class: "text", role: "option", click: () => selection.choose(row.line) },
                    el("span", { class: "number" }, row.line === 0 ? "" : String(row.line)),
                    el("code", { class: "words", style: `padding-left: ${indent(row.text) + 2}ch` }, row.text.trimStart() || " "));
    const list = beside[index].map((decision) => {
      const item = note(decision, () => selection.choose(row.line, decision.subject));
      notes.push([item, decision, row]);
      return el("li", {}, item);
    });
    return { text, row, box: el("div", { class: list.length > 0 ? "row noted" : "row" }, text, el("ul", { class: "notes" }, list)) };
  });

  panel.append(
    el("p", {}, "Each line of the program, and beside it what the compiler decided of it and why. Select a line or a decision: the other panels " +
                "show what became of it. The arrow keys move from line to line, Enter selects."),
    written ? el("p", { class: "dim" }, "Numbers are the lines of the text.")
            : el("p", { class: "dim" },
                `The program came as a module. Its text is the compiler's own; numbers are lines of ${files.join(", ") || "its source"}.`));
  for (const warning of data.warnings) panel.append(el("p", { class: "warning" }, `Warning: ${warning}`));
  panel.append(el("div", { class: "program", role: "listbox", "aria-label": "Program" }, lines.map((line) => line.box)));
  if (homeless.length > 0) {
    panel.append(el("h3", {}, "Decisions about what the compiler made itself"),
                 el("ul", { class: "notes" }, homeless.map((decision) => {
                   const item = note(decision, () => selection.choose(0, decision.subject));
                   notes.push([item, decision, { line: 0 }]);
                   return el("li", {}, item);
                 })));
  }
  roving(lines.map((line) => line.text));
  roving(notes.map(([item]) => item));

  selection.follow(() => {
    const name = selection.name === null ? null : selection.name.match(/^\w+/);
    for (const { text, row, box } of lines) {
      const chosen = row.line !== 0 && row.line === selection.line;
      box.classList.toggle("chosen", chosen);
      box.classList.toggle("related", !chosen && name !== null && names(row.text, name[0]));
      text.setAttribute("aria-selected", chosen);
    }
    for (const [item, decision, row] of notes) {
      item.classList.toggle("chosen", row.line !== 0 && row.line === selection.line &&
                            (selection.name === null || decision.subject === selection.name));
    }
  });
}
