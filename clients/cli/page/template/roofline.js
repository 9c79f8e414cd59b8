// SPDX-License-Identifier: Apache-2.0
// Operations for each byte, against what a multiprocessor can do in a cycle. Clocks are not in the targets' rows, so nothing is in seconds.

// Of the whole program: operations of products and others, bytes that blocks ask for; null with a reason where they cannot be counted.
function workOf() {
  const { kernels } = data.work;
  const unknown = kernels.find((kernel) => kernel.unknown !== null);
  if (unknown !== undefined) return { why: unknown.unknown };
  if (kernels.length > 1 && kernels.some((kernel) => kernel.blocks === null)) {
    return { why: "How many blocks there are is known only when the program is launched." };
  }
  const total = (count) => kernels.reduce((sum, kernel) => sum + count(kernel) * (kernel.blocks ?? 1), 0);
  const products = (kernel) => kernel.products.reduce((sum, product) => sum + product.operations, 0);
  return {
    products: total(products), arithmetic: total((kernel) => kernel.arithmetic), bytes: total((kernel) => kernel.bytes),
    whole: kernels.every((kernel) => kernel.blocks !== null), tensors: data.work.tensors,
  };
}

// Operations of a multiprocessor in a cycle: products take their instructions' rows, each its share. A reason where a row has no figure.
function peakOf(work) {
  const noRoof = (why) => ({ why: `${why}: there is no flat roof to draw.` });
  if (work.products === 0) return noRoof("The program has no products, and the targets' rows say only what matrix instructions do in a cycle");
  const rates = new Map();
  for (const { line, instruction, rate, row } of data.work.instructions) {
    if (!row) return noRoof(`A product is computed without a matrix instruction (${instruction}), and the target's rows have no figure for that`);
    if (rate === null) return noRoof("The target's rows do not say how many matrix units a multiprocessor has");
    rates.set(line, rate);
  }
  if (rates.size === 0) return noRoof("No product has an instruction in the compiler's last dump");
  const usual = Math.min(...rates.values());
  let cycles = 0;
  for (const kernel of data.work.kernels) {
    for (const { line, operations } of kernel.products) cycles += (operations * (kernel.blocks ?? 1)) / (rates.get(line) ?? usual);
  }
  const instructions = [...new Set(data.work.instructions.map(({ instruction }) => instruction))];
  return { peak: work.products / cycles, instructions };
}

function drawRoofline(box, width, peak, roofs, points) {
  const height = 300, left = 54, bottom = 36, right = 12, top = 14;
  const xs = [...points.map((point) => point.at), ...(peak === null ? [] : roofs.map((roof) => peak / roof.slope))];
  const low = 10 ** Math.floor(Math.log10(Math.min(...xs) / 2)), high = 10 ** Math.ceil(Math.log10(Math.max(...xs) * 2));
  const topRate = peak === null ? Math.max(...roofs.map((roof) => roof.slope * high)) : peak;
  const bottomRate = roofs.length === 0 ? topRate / 1000 : Math.min(...roofs.map((roof) => roof.slope)) * low;
  const yHigh = 10 ** Math.ceil(Math.log10(topRate * 1.01)), yLow = 10 ** Math.floor(Math.log10(bottomRate));
  const scale = (value, from, to, a, b) => a + ((Math.log10(value) - Math.log10(from)) / (Math.log10(to) - Math.log10(from))) * (b - a);
  const x = (value) => scale(value, low, high, left, width - right), y = (value) => scale(value, yLow, yHigh, height - bottom, top);
  const drawing = svg("svg", { width, height, role: "img", "aria-label": points.map((point) => point.label).join(" ") });

  for (let v = low; v <= high * 1.001; v *= 10) {
    drawing.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: top, y2: height - bottom }),
                   svg("text", { class: "faint", x: x(v), y: height - bottom + 14, "text-anchor": "middle" }, rounded(v)));
  }
  for (let v = yLow; v <= yHigh * 1.001; v *= 10) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }),
                   svg("text", { class: "faint", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, rounded(v)));
  }
  drawing.append(svg("text", { class: "faint", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "operations for each byte"),
                 svg("text", { class: "faint", x: left, y: 10 }, "operations of a multiprocessor in a cycle"));
  const line = (x1, y1, x2, y2, colour) => drawing.append(svg("line", { x1, y1, x2, y2, stroke: `var(--${colour})`, "stroke-width": 2 }));
  for (const roof of roofs) {
    const end = peak === null ? high : Math.min(high, peak / roof.slope);
    const start = Math.max(low, yLow / roof.slope);
    line(x(start), y(roof.slope * start), x(end), y(roof.slope * end), roof.colour);
    const above = roof === roofs.at(-1);  // the lines lie close together: one name above them, one below
    drawing.append(svg("text", { class: "faint", x: x(start) + (above ? 8 : 70), y: y(roof.slope * start) + (above ? -40 : 4) }, roof.name));
  }
  if (peak !== null) {
    const from = roofs.length === 0 ? low : Math.max(low, Math.min(...roofs.map((roof) => peak / roof.slope)));
    line(x(from), y(peak), x(high), y(peak), "product");
    drawing.append(svg("text", { class: "faint", x: width - right, y: y(peak) - 6, "text-anchor": "end" }, `matrix instructions: ${rounded(peak)}`));
  }
  for (const point of points) {
    drawing.append(svg("line", { x1: x(point.at), x2: x(point.at), y1: y(point.reach ?? yHigh), y2: height - bottom,
        stroke: `var(--${point.colour})`, "stroke-dasharray": "4 3" }));
    if (point.reach !== null) drawing.append(svg("circle", { cx: x(point.at), cy: y(point.reach), r: 6, fill: `var(--${point.colour})`,
        stroke: "var(--card)", "stroke-width": 2 }, svg("title", {}, point.label)));
  }
  box.replaceChildren(drawing);
}

function rooflinePanel(panel) {
  const work = workOf();
  if (work.why !== undefined) {
    panel.append(el("p", {}, `The program's operations and bytes cannot be counted. ${work.why}`));
    return;
  }
  const scope = work.whole ? "The program" : "A block of the program";
  const operations = work.products > 0 ? work.products : work.arithmetic;
  panel.append(el("p", {},
      `${scope} has ${thousands(work.products)} operations in products and ${thousands(work.arithmetic)} others on floats. Its blocks ask for ` +
                           `${thousands(work.bytes)} bytes of tensors` + (work.tensors === null ?
                               "; how large the tensors are is known only when it is launched." :
                           work.whole ? `; the tensors have ${thousands(work.tensors)} bytes, each read or written once.` : "."),
                               " Tiles count as whole and branches as taken."));
  if (operations === 0 || work.bytes === 0) {
    panel.append(el("p", {}, operations === 0 ? "It computes nothing on floats, so it has no place on a roofline." :
        "It reads and writes no tensor, so it has no place on a roofline."));
    return;
  }
  const { peak = null, why, instructions } = peakOf(work);
  const bandwidth = data.work.bandwidth;
  const roofs = bandwidth === null ? [] : [{ name: `memory: ${rounded(bandwidth.memory)} bytes a cycle`, slope: bandwidth.memory, colour: "copy" },
                                           { name: `L2: ${rounded(bandwidth.l2)} bytes a cycle`, slope: bandwidth.l2, colour: "store" }];
  const reach = (at, roof) => {
    if (roof === undefined) return null;
    return peak === null ? roof.slope * at : Math.min(peak, roof.slope * at);
  };
  const points = [{ at: operations / work.bytes, reach: reach(operations / work.bytes, roofs[1]), colour: "store",
      from: "from L2, as the blocks ask for bytes" }];
  if (work.whole && work.tensors > 0) {
    points.push({ at: operations / work.tensors, reach: reach(operations / work.tensors, roofs[0]), colour: "copy",
        from: "from memory, if each tensor came once" });
  }
  for (const point of points) {
    point.label = `${rounded(point.at)} operations for each byte ${point.from}` + (point.reach === null ? "." :
        `: at most ${rounded(point.reach)} in a cycle.`);
  }
  if (why !== undefined) panel.append(el("p", {}, why));
  else panel.append(el("p", {}, `The flat roof follows from the cycles of ${instructions.join(", ")} in the target's rows.`));
  panel.append(el("p", {}, bandwidth === null
    ? "The target's rows say nothing of its memory's bandwidth: there is no slanted roof, " +
      "and where the program stands below the flat one is not known."
    : "The slanted roofs follow from the compiler's cost model, whose figures are those of an H200: " +
      "each multiprocessor has its share of memory and of L2."));
  if (peak !== null || roofs.length > 0) {
    const box = el("div", {});
    panel.append(box);
    drawn(box, (width) => drawRoofline(box, width, peak, roofs, points));
  }
  panel.append(el("ul", { class: "plain" }, points.map((point) => el("li", {}, point.label))),
               el("p", { class: "dim" }, "The points are what the roofs allow. Nothing has been run: `kiln bench` measures."));
}
