// SPDX-License-Identifier: Apache-2.0
// Elements, and moving among them by keyboard.

const kSvg = "http://www.w3.org/2000/svg";

// Text becomes text nodes: nothing of the program is ever read as markup.
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(kSvg, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

// One stop for the Tab key; the arrows, Home and End move on among `items`, in the order of the document.
function roving(items) {
  const to = (index) => {
    const next = items[Math.max(0, Math.min(items.length - 1, index))];
    for (const item of items) item.setAttribute("tabindex", item === next ? 0 : -1);
    next.focus();
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  items.forEach((item, index) => {
    item.setAttribute("tabindex", index === 0 ? 0 : -1);
    item.addEventListener("keydown", (event) => {
      if (event.key in steps) to(index + steps[event.key]);
      else if (event.key === "Home") to(0);
      else if (event.key === "End") to(items.length - 1);
      else if (event.key === "Enter" || event.key === " ") item.dispatchEvent(new Event("click", { bubbles: true }));
      else return;
      event.preventDefault();
    });
  });
}

function readout(text) {
  return el("p", { class: "readout", "aria-live": "polite" }, text);
}

function choice(label, options, change) {
  const select = el("select", { change: () => change(Number(select.value)) },
                    options.map((text, index) => el("option", { value: index }, text)));
  return el("label", {}, el("span", {}, label), select);
}

function legend(kinds) {
  return el("ul", { class: "legend" }, kinds.map(([name, text]) => el("li", {}, el("i", { class: name }), text)));
}

// Calls draw(width) now and when the width of `box` changes.
function drawn(box, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width === 0 || width === last) return;
    last = width;
    draw(width);
  }).observe(box);
}

function thousands(number) {
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, ",");
}

function rounded(number) {
  return number >= 100 ? thousands(number) : String(Number(number.toPrecision(3)));
}
