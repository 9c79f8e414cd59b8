// SPDX-License-Identifier: Apache-2.0
// What a block takes of a multiprocessor, and how many blocks that leaves room for.

function meter(part, whole) {
  return el("span", { class: "meter", role: "img", "aria-label": `${Math.round((100 * part) / whole)} percent` },
            el("i", { style: `width: ${Math.min(100, (100 * part) / whole)}%` }));
}

function amount(value, most, unit) {
  if (value === null) return ["not known"];
  return most === null ? [`${thousands(value)}${unit}`] : [`${thousands(value)} of ${thousands(most)}${unit}`, meter(value, most)];
}

function occupancy(kernel, target) {
  const threads = kernel.threads === null ? null : kernel.threads + kernel.producers;
  const says = [];
  if (kernel.shared > 0) {
    const blocks = Math.floor(target.shared / kernel.shared);
    says.push(`By shared memory, at least ${blocks} ${blocks === 1 ? "block fits" : "blocks fit"} on a multiprocessor: ` +
              `it has at least the ${thousands(target.shared)} bytes that ` +
              "one block may have. How much more it has is not in the target's row.");
  } else {
    says.push("Shared memory sets no limit: the kernel uses none.");
  }
  if (kernel.registers === null) {
    says.push("By registers nothing can be said: how many a thread has is known once an assembler has run.");
  } else if (target.all_registers === null) {
    says.push("In what portions a multiprocessor gives out registers is not in the target's row, so registers say nothing of how many blocks fit.");
  } else if (threads !== null) {
    // A warp gets registers in portions of 256: eight for each of its threads.
    const each = Math.ceil(kernel.registers / 8) * 8;
    const allocated = Math.ceil(threads / 32) * 32;
    const blocks = Math.floor(target.all_registers / (each * allocated));
    says.push(`By registers, ${blocks} ${blocks === 1 ? "block fits" : "blocks fit"}: ${each} × ${allocated} threads of ` +
              `${thousands(target.all_registers)}. A warp gets eight registers a thread at a time.`);
  }
  if (kernel.min_blocks > 0) says.push(`The program asks for at least ${kernel.min_blocks} blocks on a multiprocessor.`);
  return says;
}

function whyUnknown() {
  const { target, cubin } = data.resources;
  if (target.emulated) return "Registers are not known: emulated code is made for the host's processor, not for the GPU's registers.";
  if (target.family === "nvidia" && !cubin) {
    return "Registers, spills and local memory are not known: they are ptxas's to choose, and none was at hand when this was compiled.";
  }
  return "Registers, spills and local memory are not known: the code object does not name them.";
}

function resourcesPanel(panel) {
  const { target, kernels } = data.resources;
  if (target === null) {
    panel.append(el("p", {}, `This command does not know the target ${data.target}, so it cannot say what its limits are.`));
    return;
  }
  if (kernels.some((kernel) => kernel.registers === null)) panel.append(el("p", {}, whyUnknown()));
  const most = target.registers;
  for (const kernel of kernels) {
    const threads = kernel.threads === null ? null : kernel.threads + kernel.producers;
    const rows = [
      ["threads of a block", amount(threads, target.threads, ""), kernel.producers > 0 ?
          `${kernel.threads} compute, ${kernel.producers} fill rings` : ""],
      ["shared memory of a block", amount(kernel.shared, target.shared, " bytes"), ""],
      ["registers of a thread", amount(kernel.registers, most, ""), ""],
      ["spilled", amount(kernel.spilled, null, " bytes"), ""],
      ["local memory of a thread", amount(kernel.local, null, " bytes"), ""],
    ];
    if (target.family === "amd") rows.push(["scalar registers", amount(kernel.scalar, null, ""), ""]);
    panel.append(el("h3", {}, kernel.name ?? kernel.entry),
                 el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows.map(([name, value, remark]) =>
                   el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value), el("td", { class: "dim" }, remark)))))),
                 el("ul", { class: "plain" }, occupancy(kernel, target).map((text) => el("li", {}, text))));
  }
}
