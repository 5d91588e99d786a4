// Picking chips and tensors, and reading points. The page says all it has to say without it.
"use strict";

/** The number of the part that a chip holds, of a dim cut by `axes`, major to minor. */
function partOf(axes, sizes, chip) {
  return axes.reduce((part, axis) => part * sizes.get(axis) + chip.get(axis), 0);
}

/** Moves what is marked as held in a drawing to the block of a chip. */
function moveHeld(figure, sizes, chip) {
  const cut = new Map(JSON.parse(figure.dataset.dims).map(([name, , axes]) => [name, axes]));
  for (const panel of figure.querySelectorAll("g[data-rows]")) {
    const [box, held] = [panel.querySelector(".box"), panel.querySelector(".held")];
    for (const [dim, start, length] of [[panel.dataset.columns, "x", "width"], [panel.dataset.rows, "y", "height"]]) {
      const axes = dim ? cut.get(dim) : [];
      const ways = axes.reduce((product, axis) => product * sizes.get(axis), 1);
      const part = Number(box.getAttribute(length)) / ways;
      held.setAttribute(start, Number(box.getAttribute(start)) + part * partOf(axes, sizes, chip));
      held.setAttribute(length, part);
    }
  }
}

/** What a chip holds, in words. */
function described(figure, sizes, chip, copies, addends) {
  const place = [...chip].map(([axis, at]) => `${axis}=${at}`).join(" ");
  const ranges = JSON.parse(figure.dataset.dims).map(([name, size, axes]) => {
    const ways = axes.reduce((product, axis) => product * sizes.get(axis), 1);
    const start = (size / ways) * partOf(axes, sizes, chip);
    return `${name}[${start}:${start + size / ways}]`;
  });
  const name = figure.querySelector(".name").textContent;
  const lines = [`Chip ${place} holds ${figure.dataset.bytes} of ${name}:`, ranges.join(" ") || "all of it"];
  if (copies) lines.push(`= the same on ${copies} other chip${copies === 1 ? "" : "s"}`);
  if (addends) lines.push(`+ to be combined with what ${addends} other chip${addends === 1 ? "" : "s"} hold${addends === 1 ? "s" : ""}`);
  return lines.join("\n");
}

/** Makes the mesh and the drawings of one phase respond. */
function connect(phase) {
  const sizes = new Map(JSON.parse(phase.dataset.axes));
  const names = [...sizes.keys()];
  const [form, select] = [phase.querySelector(".picker"), phase.querySelector(".pick")];
  const inputs = [...phase.querySelectorAll(".at")];
  const [shown, output] = [phase.querySelector(".shown"), phase.querySelector(".held-text")];
  const cells = [...phase.querySelectorAll(".mesh .chip[data-at]")];
  const figures = [...phase.querySelectorAll(".gallery .tensor")];
  const figureOf = (tensor) => phase.querySelector(`#${phase.id}-t${tensor}`);
  const chip = new Map(names.map((name) => [name, 0]));

  /** How the block of another chip stands to that of the picked one: "", "copy" or "addend". */
  function relation(other, figure) {
    const cut = JSON.parse(figure.dataset.dims).flatMap(([, , axes]) => axes);
    if (cut.some((axis) => other.get(axis) !== chip.get(axis))) return "";
    return JSON.parse(figure.dataset.partial).some((axis) => other.get(axis) !== chip.get(axis)) ? "addend" : "copy";
  }

  function markMesh(figure) {
    for (const cell of cells) {
      const other = new Map(cell.dataset.at.split(",").map((at, k) => [names[k], Number(at)]));
      const same = names.every((name) => other.get(name) === chip.get(name));
      const kind = same ? "picked" : relation(other, figure);
      cell.setAttribute("class", `chip ${kind}`);
      cell.querySelector("text").textContent = { copy: "=", addend: "+" }[kind] ?? "";
    }
  }

  function draw() {
    const figure = figureOf(select.value);
    for (const other of figures) other.classList.toggle("on", other === figure);
    for (const row of phase.querySelectorAll(".steps tr")) {
      row.classList.toggle("on", row.querySelector(".to")?.dataset.tensor === select.value);
    }
    for (const other of figures) moveHeld(other, sizes, chip);
    const copy = figure.cloneNode(true);
    copy.removeAttribute("id");
    copy.classList.remove("on");
    shown.replaceChildren(copy);
    const cut = new Set(JSON.parse(figure.dataset.dims).flatMap(([, , axes]) => axes));
    const partial = new Set(JSON.parse(figure.dataset.partial));
    const count = (kept) => names.filter(kept).reduce((product, name) => product * sizes.get(name), 1);
    const copies = count((name) => !cut.has(name) && !partial.has(name));
    const addends = copies * count((name) => partial.has(name)) - copies;
    output.textContent = described(figure, sizes, chip, copies - 1, addends);
    markMesh(figure);
  }

  function pickChip(at) {
    at.forEach((place, k) => {
      const most = sizes.get(names[k]) - 1;
      chip.set(names[k], Math.min(Math.max(Math.trunc(place) || 0, 0), most));
      inputs[k].value = chip.get(names[k]);
    });
    draw();
  }

  function pickTensor(tensor) {
    select.value = tensor;
    draw();
  }

  for (const cell of cells) cell.addEventListener("click", () => pickChip(cell.dataset.at.split(",").map(Number)));
  for (const figure of figures) {
    figure.addEventListener("click", () => pickTensor(figure.id.slice(phase.id.length + 2)));
  }
  for (const input of inputs) input.addEventListener("change", () => pickChip(inputs.map((one) => Number(one.value))));
  select.addEventListener("change", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const link of phase.querySelectorAll(".to")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      pickTensor(link.dataset.tensor);
      phase.querySelector(".bench").scrollIntoView({ block: "start" });
    });
  }
  form.hidden = false;
  draw();
}

/** Shows the figures of the mark that is pointed at or focused; arrow keys go from mark to mark. */
function readPoints(section) {
  const marks = [...section.querySelectorAll(".point[data-point]")];
  const output = section.querySelector(".details");
  const show = (mark) => {
    output.textContent = mark.getAttribute("aria-label");
  };
  marks.forEach((mark, k) => {
    mark.setAttribute("tabindex", k ? "-1" : "0");
    mark.addEventListener("pointerenter", () => show(mark));
    mark.addEventListener("focus", () => show(mark));
    mark.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = marks[(k + step + marks.length) % marks.length];
      for (const other of marks) other.setAttribute("tabindex", other === next ? "0" : "-1");
      next.focus();
    });
  });
}

document.documentElement.classList.add("script");
for (const phase of document.querySelectorAll("article[data-axes]")) connect(phase);
for (const section of document.querySelectorAll(".frontier")) readPoints(section);
