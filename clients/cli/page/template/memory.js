// SPDX-License-Identifier: Apache-2.0
// Shared memory over time: which bytes a buffer has, and which statements read and write them.

const kMapHeight = 320, kAxis = 64;

function hueOf(index) {
  return `hsl(${(index * 137 + 210) % 360} 50% 48%)`;
}

function drawMap(kernel, axis, box, words, width) {
  const columns = kernel.statements.length;
  const column = Math.max(16, Math.min(64, Math.floor((width - 2) / Math.max(1, columns))));
  const around = (loop) => kernel.loops.filter((other) => other !== loop && other.from <= loop.from && other.to >= loop.to);
  const loops = kernel.loops.map((loop) => ({ ...loop, depth: around(loop).length }));
  const top = 20 * (loops.length === 0 ? 0 : 1 + Math.max(...loops.map((loop) => loop.depth))) + 6;
  const bytes = Math.max(1, ...kernel.buffers.map((buffer) => buffer.offset + (buffer.bytes ?? 0)));
  const y = (offset) => top + (offset / bytes) * kMapHeight;
  const drawing = svg("svg", { width: columns * column + 2, height: top + kMapHeight + 6, role: "group",
      "aria-label": `Shared memory of ${kernel.kernel}` });
  const scale = svg("svg", { width: kAxis, height: top + kMapHeight + 6, "aria-hidden": "true" });
  const marks = [];

  for (const loop of loops) {
    const level = 20 * loop.depth;
    drawing.append(svg("rect", { x: loop.from * column + 1, y: level + 1, width: (loop.to - loop.from) * column - 2, height: 16, rx: 3,
        fill: "var(--line)" }),
                   svg("text", { class: "faint", x: loop.from * column + 5, y: level + 13 }, loop.text.slice(0,
                       Math.floor(((loop.to - loop.from) * column - 8) / 6))));
  }
  for (let i = 0; i <= 4; ++i) {
    const offset = Math.round((bytes * i) / 4);
    scale.append(svg("text", { class: "faint", x: kAxis - 6, y: Math.min(top + kMapHeight, y(offset) + (i === 0 ? 9 : 4)), "text-anchor": "end" },
        thousands(offset)));
    drawing.append(svg("line", { class: "grid", x1: 0, x2: "100%", y1: y(offset), y2: y(offset) }));
  }
  kernel.buffers.forEach((buffer, index) => {
    const height = Math.max(4, y(buffer.offset + (buffer.bytes ?? 0)) - y(buffer.offset) - 1);
    const from = Math.min(...buffer.uses.map((use) => use.statement)), to = Math.max(...buffer.uses.map((use) => use.statement)) + 1;
    drawing.append(svg("rect", { x: from * column, y: y(buffer.offset), width: (to - from) * column, height, fill: hueOf(index),
        "fill-opacity": 0.2 }));
    for (const use of buffer.uses) {
      const statement = kernel.statements[use.statement];
      const does = { reads: "reads", writes: "writes", both: "reads and writes" }[use.kind];
      const last = buffer.offset + (buffer.bytes ?? 1) - 1;
      const told = `${statement.text} ${does} ${buffer.name}: bytes ${thousands(buffer.offset)} to ${thousands(last)}.`;
      const mark = svg("rect", {
        class: "mark", style: `--fill: ${hueOf(index)}`, "fill-opacity": use.kind === "reads" ? 0.55 : 1, x: use.statement * column + 1.5,
            y: y(buffer.offset),
        width: column - 3, height, rx: 2, role: "button", "aria-label": told, click: () => selection.choose(statement.line, buffer.name),
        focus: () => { words.textContent = told; }, pointerenter: () => { words.textContent = told; },
      });
      drawing.append(mark);
      marks.push([mark, statement.line, use.statement]);
      const letter = { reads: "r", writes: "w", both: "rw" }[use.kind];
      if (height > 13) drawing.append(svg("text", { class: "inside", x: (use.statement + 0.5) * column, y: y(buffer.offset) + height / 2 + 4,
          "text-anchor": "middle" }, letter));
    }
  });
  marks.sort((a, b) => a[2] - b[2]);
  roving(marks.map(([mark]) => mark));
  axis.replaceChildren(scale);
  box.replaceChildren(drawing);
  return marks;
}

function bufferTable(kernel) {
  const head = ["", "buffer", "offset", "bytes", "versions", "conflicts", "layout"];
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))),
    el("tbody", {}, kernel.buffers.map((buffer, index) => el("tr", {},
      el("td", {}, el("i", { style: `display: inline-block; width: 12px; height: 12px; background: ${hueOf(index)}` })),
      el("td", {}, el("code", {}, buffer.name)),
      el("td", { class: "number" }, thousands(buffer.offset)),
      el("td", { class: "number" }, buffer.bytes === null ? "not reported" : thousands(buffer.bytes)),
      el("td", { class: "number" }, buffer.versions === null ? "not reported" : String(buffer.versions)),
      el("td", {}, buffer.conflicts === null ? "not reported" : buffer.conflicts > 1 ? `${buffer.conflicts} ways` : "none"),
      el("td", {}, el("code", {}, buffer.layout ?? "none")))))));
}

function memoryPanel(panel) {
  const kernels = data.memory.kernels.filter((kernel) => kernel.buffers.length > 0);
  if (kernels.length === 0) {
    panel.append(el("p", {}, "The program uses no shared memory."));
    return;
  }
  panel.append(el("p", {},
      "A row is bytes of a block's shared memory, a column a statement that touches them, in the order of the program after the last " +
                           "pass. Full: writes (w), or reads and writes (rw). " +
                           "Lighter: reads (r). Pale: from the first to the last statement that touches the buffer. " +
                           "Buffers that share bytes are never needed at the same time."));
  for (const kernel of kernels) {
    const words = readout("Point at a use, or move with the arrow keys.");
    const axis = el("div", {}), box = el("div", { class: "scroll" });
    const limit = data.memory.limit === null ? "" : ` of the ${thousands(data.memory.limit)} that a block may have`;
    panel.append(el("h3", {}, `${kernel.kernel}: ${thousands(kernel.bytes)} bytes${limit}`), el("div", { class: "lanes" }, axis, box), words,
        bufferTable(kernel));
    let marks = [];
    const show = followLine(() => marks);
    drawn(box, (width) => {
      marks = drawMap(kernel, axis, box, words, width);
      show();
    });
  }
}
