// SPDX-License-Identifier: Apache-2.0
// What is selected: a line of the program, with the buffer that a decision is about. All panels show it.

const selection = {
  line: 0,
  name: null,
  followers: [],
  choose(line, name = null) {
    this.line = line;
    this.name = name;
    for (const follow of this.followers) follow();
  },
  follow(show) {
    this.followers.push(show);
  },
};

// Marks of a drawing: shown as chosen where their line is.
function followLine(marks) {
  const show = () => {
    for (const [mark, line] of marks()) mark.classList.toggle("chosen", line !== 0 && line === selection.line);
  };
  selection.follow(show);
  return show;
}
