// SPDX-License-Identifier: Apache-2.0
// Where each element of a tile lies: a grid of its last two dimensions, coloured by thread or by bank.

const kBanks = 32, kBankBytes = 4;  // as the compiler counts conflicts: 16 bytes of eight rows, over 32 banks of 4 bytes
const kChunkBytes = 16, kChunks = (kBanks * kBankBytes) / kChunkBytes;
const kWrapped = 64;                // columns of a tile with one dimension
const kMostRows = 1024;
const kHeight = 540;                // pixels that a grid takes where it fits

const sum = (terms, kind, index) => index.reduce((total, value, d) => total + terms[d][kind][value], 0);

// The place of an element: {thread, register} or {byte, bank}.
function placeOf(layout, index) {
  if (layout.kind === "shared" || layout.kind === "barrier") {
    const { bits, base, shift } = layout.swizzle;
    const plain = Math.floor((sum(layout.terms, "address", index) * layout.bits) / 8);
    const byte = plain ^ (((plain >> (base + shift)) & ((1 << bits) - 1)) << base);
    return { byte, bank: Math.floor(byte / kBankBytes) % kBanks };
  }
  return { thread: sum(layout.terms, "thread", index), register: sum(layout.terms, "register", index) };
}

// How many of the eight rows around an element have their 16 bytes in the banks of this one's.
function conflictsAt(layout, index) {
  const rowDim = index.length - 2;
  if (rowDim < 0) return 1;
  const chunk = (at) => Math.floor(placeOf(layout, at).byte / kChunkBytes) % kChunks;
  const first = index[rowDim] - (index[rowDim] % 8);
  let meet = 0;
  for (let row = first; row < Math.min(first + 8, layout.shape[rowDim]); ++row) {
    meet += chunk(index.with(rowDim, row)) === chunk(index);
  }
  return meet;
}

// A tile as rows and columns: the last two dimensions at the given outer indices; one dimension is wrapped.
function gridOf(layout, outer) {
  const rank = layout.shape.length;
  const last = layout.shape[rank - 1];
  if (rank === 1) {
    const columns = Math.min(kWrapped, last);
    return { rows: Math.ceil(last / columns), columns, index: (r, c) => (r * columns + c < last ? [r * columns + c] : null) };
  }
  return { rows: Math.min(kMostRows, layout.shape[rank - 2]), columns: last, index: (r, c) => [...outer, r, c] };
}

function colourOf(layout, place) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  if (place.bank !== undefined) return `hsl(${Math.round((place.bank / kBanks) * 340)} 60% ${dark ? 45 : 70}%)`;
  const warp = data.resources.target === null ? 32 : data.resources.target.warp;
  const lane = place.thread % warp, group = Math.floor(place.thread / warp) % 4;
  return `hsl(${Math.round((lane / warp) * 340)} ${70 - group * 12}% ${(dark ? 34 : 60) + group * 7}%)`;
}

function describe(layout, index) {
  const place = placeOf(layout, index);
  const element = `${layout.name.replace("[…] =", "")}[${index.join(", ")}]`;
  if (place.bank !== undefined) {
    const meet = conflictsAt(layout, index);
    const rows = layout.shape.length < 2 || layout.kind === "barrier" ? ""
      : meet > 1 ? ` Of these eight rows, ${meet} have this column in the same banks.` :
          " No other of these eight rows has this column in the same banks.";
    const from = layout.offset === null ? `byte ${place.byte}` : `byte ${layout.offset + place.byte} (${layout.offset} + ${place.byte})`;
    return `${element}: ${from}, bank ${place.bank}.${rows}`;
  }
  const warp = data.resources.target === null ? 32 : data.resources.target.warp;
  const others = layout.copies.slice(1).map((more) => place.thread + more);
  const shown = others.length > 8 ? `${others.slice(0, 8).join(", ")} and ${others.length - 8} more` : others.join(", ");
  return `${element}: thread ${place.thread} (warp ${Math.floor(place.thread / warp)}, lane ${place.thread % warp}), register ${place.register}.` +
         (others.length > 0 ? ` Threads ${shown} hold copies.` : "");
}

// The grid as a canvas that is moved in by pointer and by arrow keys.
class LayoutGrid {
  constructor(layout, outer, cell, box, words) {
    this.layout = layout;
    this.grid = gridOf(layout, outer);
    this.cell = cell;
    this.words = words;
    this.at = [0, 0];
    this.canvas = el("canvas", {
      tabindex: 0, role: "application", "aria-label": `Layout of ${layout.name}. The arrow keys move from element to element.`,
      keydown: (event) => this.key(event), focus: () => this.show(),
      pointermove: (event) => this.point(event), pointerdown: (event) => this.point(event),
    });
    box.replaceChildren(this.canvas);
    const ratio = window.devicePixelRatio || 1;
    const width = this.grid.columns * cell, height = this.grid.rows * cell;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.context = this.canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.paint();
    this.base = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height);
  }

  each(visit) {
    for (let r = 0; r < this.grid.rows; ++r) {
      for (let c = 0; c < this.grid.columns; ++c) {
        const index = this.grid.index(r, c);
        if (index !== null) visit(r, c, placeOf(this.layout, index));
      }
    }
  }

  paint() {
    const gap = this.cell > 6 ? 1 : 0;
    this.context.textAlign = "center";
    this.context.textBaseline = "middle";
    this.context.font = "10px system-ui, sans-serif";
    this.each((r, c, place) => {
      this.context.fillStyle = colourOf(this.layout, place);
      this.context.fillRect(c * this.cell, r * this.cell, this.cell - gap, this.cell - gap);
      if (this.cell < 30) return;
      this.context.fillStyle = getComputedStyle(document.body).color;
      const x = (c + 0.5) * this.cell, y = (r + 0.5) * this.cell;
      this.context.fillText(place.bank ?? `t${place.thread}`, x, place.bank === undefined ? y - 6 : y);
      if (place.bank === undefined) this.context.fillText(`r${place.register}`, x, y + 6);
    });
  }

  key(event) {
    const [r, c] = this.at;
    const moves = { ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], Home: [r, 0],
                    End: [r, this.grid.columns - 1], PageUp: [r - 8, c], PageDown: [r + 8, c] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.move(...moves[event.key]);
  }

  point(event) {
    this.move(Math.floor(event.offsetY / this.cell), Math.floor(event.offsetX / this.cell));
  }

  move(r, c) {
    const next = [Math.max(0, Math.min(this.grid.rows - 1, r)), Math.max(0, Math.min(this.grid.columns - 1, c))];
    if (this.grid.index(...next) === null) return;
    this.at = next;
    this.show();
  }

  // Outlines the element, and those of the same thread or, among its eight rows, of the same bank.
  show() {
    const [row, column] = this.at;
    const chosen = placeOf(this.layout, this.grid.index(row, column));
    const eight = row - (row % 8);
    this.context.putImageData(this.base, 0, 0);
    const ink = getComputedStyle(document.body).color;
    this.context.strokeStyle = ink;
    this.context.lineWidth = this.cell > 6 ? 1.5 : 1;
    this.each((r, c, place) => {
      const same = place.bank === undefined ? place.thread === chosen.thread : place.bank === chosen.bank && r >= eight && r < eight + 8;
      if (same) this.context.strokeRect(c * this.cell + 0.5, r * this.cell + 0.5, this.cell - 1, this.cell - 1);
    });
    this.context.lineWidth = 3;
    this.context.strokeRect(column * this.cell, row * this.cell, this.cell, this.cell);
    this.words.textContent = describe(this.layout, this.grid.index(row, column));
  }
}

function factsOf(layout) {
  const tile = `${layout.shape.join(" × ")} ${layout.dtype === null ? "iterations" : `of ${layout.dtype}`}`;
  if (layout.kind === "shared" || layout.kind === "barrier") {
    const conflicts = layout.conflicts === null ? "The report says nothing of bank conflicts."
      : layout.conflicts > 1 ? `Where a warp reads 16 bytes of eight rows each, ${layout.conflicts} of them meet in the same banks.`
      : layout.shape.length < 2 || layout.kind === "barrier" ? "" : "Where a warp reads 16 bytes of eight rows each, no two meet in the same banks.";
    const versions = layout.versions > 1 ? ` The first dimension counts ${layout.versions} versions.` : "";
    return `${tile} in shared memory. ${conflicts}${versions}`;
  }
  return `${tile} over ${layout.threads} threads, ${layout.registers} registers of each` +
         (layout.copies.length > 1 ? `; each element is held by ${layout.copies.length} threads.` : ".");
}

function layoutsPanel(panel) {
  const kinds = { fragment: "fragment", shared: "shared memory", loop: "loop over the threads", barrier: "barriers" };
  const order = Object.keys(kinds);
  const layouts = data.layouts.toSorted((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
  if (layouts.length === 0) {
    panel.append(el("p", {}, "The program has no fragment and no tile in shared memory, so there is no layout to draw."));
    return;
  }
  const words = readout("Point at an element, or move with the arrow keys.");
  const facts = el("p", {}), formula = el("p", { class: "dim" }), box = el("div", { class: "scroll tile" });
  const outerBox = el("div", { class: "controls" });
  const key = el("p", { class: "dim" });
  let at = 0, outer = [], zoom = 0, width = 0;

  const cells = (layout) => {
    const { rows, columns } = gridOf(layout, outer);
    const fit = Math.max(3, Math.min(20, Math.floor(width / columns), Math.floor(kHeight / rows)));
    return [fit, Math.max(12, fit), 34][zoom];
  };
  const draw = () => {
    if (width > 0) new LayoutGrid(layouts[at], outer, cells(layouts[at]), box, words);
  };
  const choose = (index) => {
    at = index;
    const layout = layouts[at];
    outer = layout.shape.slice(0, -2).map(() => 0);
    facts.textContent = factsOf(layout) + (layout.shape.at(-2) > kMostRows ? ` The first ${kMostRows} rows are drawn.` : "");
    formula.replaceChildren("Layout: ", el("code", {}, layout.text));
    key.textContent = layout.kind === "shared" || layout.kind === "barrier" ? "One colour is one bank. Outlined: the same bank within eight rows."
      : "One hue is one lane, one shade one warp. Outlined: what the same thread holds.";
    outerBox.replaceChildren(...outer.map((_, d) => choice(`index ${d}`, [...Array(Math.min(64, layout.shape[d])).keys()].map(String), (value) => {
      outer[d] = value;
      draw();
    })));
    words.textContent = "Point at an element, or move with the arrow keys.";
    draw();
  };

  const picker = choice("tile", layouts.map((layout) => `${layout.name} (${kinds[layout.kind]})`), choose);
  panel.append(el("p", {}, "Where each element of a tile lies: in which register of which thread, or in which bank of shared memory."),
               el("div", { class: "controls" }, picker, choice("cells", ["fit", "larger", "with numbers"], (value) => { zoom = value; draw(); })),
               facts, formula, outerBox, box, key, words);
  choose(0);
  drawn(box, (now) => { width = now; draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  selection.follow(() => {
    const name = selection.name === null ? null : selection.name.match(/^\w+/);
    const byName = name === null ? -1 : layouts.findIndex((layout) => layout.name === name[0]);
    const found = byName >= 0 ? byName : layouts.findIndex((layout) => layout.lines.includes(selection.line));
    if (found < 0) return;
    picker.querySelector("select").value = found;
    choose(found);
  });
}
