// SPDX-License-Identifier: Apache-2.0
// The loops that copy: what runs beside what, by role, kind and stage. A column is one statement of the computing threads, not a time.

const kLane = 24, kTop = 22;
const kPlural = { copy: "copies", product: "products", arithmetic: "arithmetic", store: "stores", wait: "waits" };

// Bars of one role, kind and stage; those that overlap lie one below the other.
function lanesOf(loop) {
  const lanes = new Map();
  for (const bar of loop.bars) {
    const statement = loop.statements[bar.statement];
    const key = JSON.stringify([statement.role, statement.kind, bar.stage]);
    if (!lanes.has(key)) lanes.set(key, { role: statement.role, kind: statement.kind, stage: bar.stage, rows: [] });
    const { rows } = lanes.get(key);
    let row = rows.findIndex((bars) => bars.at(-1).to <= bar.from);
    if (row < 0) row = rows.push([]) - 1;
    rows[row].push(bar);
  }
  // Roles in the order in which the loop's body names them; of one role, copies, then products, then the rest.
  const roles = [...new Set(loop.statements.map((statement) => statement.role))];
  const kinds = Object.keys(kPlural);
  return [...lanes.values()].sort((a, b) =>
    roles.indexOf(a.role) - roles.indexOf(b.role) || kinds.indexOf(a.kind) - kinds.indexOf(b.kind) || (a.stage ?? -1) - (b.stage ?? -1));
}

function describeBar(loop, bar) {
  const statement = loop.statements[bar.statement];
  const where = bar.from < 0 ? "ahead of the loop" : `iteration ${bar.step}`;
  const stage = bar.stage === null ? "" : `, stage ${bar.stage}`;
  const guard = statement.guarded ? " It stands in a branch: not every iteration does it." : "";
  const beside = bar.beside ? " It may run anywhere in its bar, beside the others." : "";
  return `${where}${stage}, ${statement.role}: ${statement.text}.${beside}${guard}`;
}

function laneName(lane) {
  const name = kPlural[lane.kind] ?? lane.kind;
  return lane.stage === null ? name : `${name}, stage ${lane.stage}`;
}

function drawTimeline(loop, labels, box, words, width) {
  const lanes = lanesOf(loop);
  const first = Math.min(0, ...loop.bars.map((bar) => bar.from));
  const end = loop.steps * loop.width;
  const slot = Math.max(loop.width > 6 ? 14 : 22, Math.min(60, Math.floor((width - 4) / (end - first))));
  const x = (at) => (at - first) * slot;
  const drawing = svg("svg", { role: "group", "aria-label": `Timeline of ${loop.loop}` });
  const names = svg("svg", { "aria-hidden": "true" });
  const marks = [];

  for (let step = 0; step < loop.steps; ++step) {
    drawing.append(svg("line", { class: "grid", x1: x(step * loop.width) + 0.5, x2: x(step * loop.width) + 0.5, y1: 0, y2: "100%" }),
                   svg("text", { class: "faint", x: x(step * loop.width) + 4, y: 14 }, loop.width * slot > 70 ? `iteration ${step}` : String(step)));
  }
  if (first < 0) drawing.append(svg("text", { class: "faint", x: 2, y: 14 }, -first * slot > 40 ? "before" : ""));

  let y = kTop, role = null, widest = 60;
  for (const lane of lanes) {
    if (lane.role !== role) {
      role = lane.role;
      names.append(svg("text", { x: 0, y: y + 15, "font-weight": 600 }, role));
      drawing.append(svg("line", { class: "grid", x1: 0, x2: "100%", y1: y + 0.5, y2: y + 0.5 }));
      widest = Math.max(widest, role.length * 7.5);
      y += 20;
    }
    names.append(svg("text", { class: "faint", x: 10, y: y + 15 }, laneName(lane)));
    widest = Math.max(widest, laneName(lane).length * 6 + 16);
    for (const bars of lane.rows) {
      for (const bar of bars) {
        const statement = loop.statements[bar.statement];
        const mark = svg("rect", {
          class: `mark ${statement.kind}${bar.beside ? " other" : ""}`, x: x(bar.from) + 1, y: y + 2, width: (bar.to - bar.from) * slot - 2,
              height: kLane - 4, rx: 3,
          role: "button", "aria-label": describeBar(loop, bar), click: () => selection.choose(statement.line),
          focus: () => { words.textContent = describeBar(loop, bar); }, pointerenter: () => { words.textContent = describeBar(loop, bar); },
        });
        drawing.append(mark);
        marks.push([mark, statement.line]);
        if ((bar.to - bar.from) * slot > 16) {
          drawing.append(svg("text", { class: bar.beside ? "inside other" : "inside", x: x(bar.from) + 6, y: y + 16 }, String(bar.step)));
        }
      }
      y += kLane;
    }
  }
  for (const [image, w] of [[drawing, x(end) + 4], [names, widest]]) {
    image.setAttribute("width", w);
    image.setAttribute("height", y + 4);
  }
  roving(marks.map(([mark]) => mark));
  labels.replaceChildren(names);
  box.replaceChildren(drawing);
  return marks;
}

function pipelinePanel(panel) {
  const loops = data.schedule;
  if (loops.length === 0) {
    panel.append(el("p", {}, "No loop of the program copies tiles or multiplies them, so nothing runs ahead and there is no timeline to draw."));
    return;
  }
  const words = readout("Point at a bar, or move with the arrow keys.");
  const labels = el("div", {}), box = el("div", { class: "scroll" }), facts = el("p", {});
  let at = 0, width = 0, marks = [];
  const show = followLine(() => marks);
  const draw = () => {
    if (width === 0) return;
    marks = drawTimeline(loops[at], labels, box, words, width);
    show();
  };
  const choose = (index) => {
    at = index;
    const loop = loops[at];
    const trips = loop.trips === null ? "How many iterations it has is known only when it runs" : `It has ${loop.trips} iterations`;
    facts.replaceChildren(el("code", {}, loop.loop), ` ${trips}; ${loop.trips === loop.steps ? "all" : `the first ${loop.steps}`} are drawn.`);
    draw();
  };
  panel.append(
    el("p", {}, "What may run beside what. A column is one statement of the threads that compute, in their order: " +
                "the compiler does not know how long " +
                "each takes. A full bar is a statement at its place. A pale bar is a copy or a product " +
                "that runs beside others: it reaches from where it may " +
                "start to the wait by which it must have ended."),
    legend([["copy", "copy"], ["product", "product"], ["arithmetic", "arithmetic"], ["store", "store to global memory"], ["wait", "wait"]]));
  if (loops.length > 1) panel.append(el("div", { class: "controls" }, choice("loop", loops.map((loop) => `${loop.kernel}: ${loop.loop}`), choose)));
  panel.append(facts, el("div", { class: "lanes" }, labels, box), words);
  choose(0);
  drawn(box, (now) => { width = now; draw(); });
}
