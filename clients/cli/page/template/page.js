// SPDX-License-Identifier: Apache-2.0
// The page: its data, and each panel.

const data = JSON.parse(document.getElementById("data").textContent);

document.getElementById("name").textContent = data.name === "" ? "Program" : data.name;
document.getElementById("about").textContent = `for ${data.target}, as the compiler ${data.compiler.slice(0, 16)} decided`;
programPanel(document.getElementById("program"));
layoutsPanel(document.getElementById("layouts"));
pipelinePanel(document.getElementById("pipeline"));
memoryPanel(document.getElementById("memory"));
resourcesPanel(document.getElementById("resources"));
rooflinePanel(document.getElementById("roofline"));
