// Rows stand in blocks; only the blocks near the view have content.

const BLOCK = 40; // rows
const AHEAD = "1200px 0px";
const WIDEST = 140; // characters of a line, as in the style sheet

function makeBlocks(pane) {
  const n = pane.t.rows.length;
  for (let from = 0; from < n; from += BLOCK) {
    const element = made("div", "block");
    const block = { element, from, to: Math.min(from + BLOCK, n), isFull: false };
    element.block = block;
    pane.blocks.push(block);
    pane.scroll.append(element);
  }
}

function blockOf(pane, row) {
  return pane.blocks[Math.floor(row / BLOCK)];
}

// Undefined while the row's block is empty.
function rowElement(pane, row) {
  return blockOf(pane, row).element.children[row - blockOf(pane, row).from];
}

function guessHeights(pane, shared) {
  const columns = Math.min(WIDEST, Math.max(20, (pane.scroll.clientWidth - 190) / 8.5));
  for (const block of pane.blocks) {
    if (block.isFull) continue;
    let lines = 0;
    for (let i = block.from; i < block.to; i += 1) {
      const row = pane.t.rows[i];
      const n = row.rule ? 0 : rowText(shared, pane.t, row).length;
      lines += row.rule ? 2 : Math.max(1, Math.ceil(n / columns));
    }
    block.element.style.height = `${lines * 21}px`;
  }
}

function fill(pane, page, block) {
  if (block.isFull) return;
  block.isFull = true;
  block.element.style.height = "";
  const rows = [];
  for (let i = block.from; i < block.to; i += 1) rows.push(drawRow(pane, page, i));
  block.element.replaceChildren(...rows);
}

function empty(block) {
  if (!block.isFull) return;
  block.element.style.height = `${block.element.offsetHeight}px`;
  block.isFull = false;
  block.element.replaceChildren();
}

function redraw(pane, page) {
  for (const block of pane.blocks) {
    if (!block.isFull) continue;
    block.isFull = false;
    fill(pane, page, block);
  }
  drawMap(pane, page);
}

function watch(pane, page) {
  pane.watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) fill(pane, page, entry.target.block);
      else if (!page.isPrinting) empty(entry.target.block);
    }
    updateStep(pane);
  }, { root: pane.scroll, rootMargin: AHEAD });
  pane.blocks.forEach((block) => pane.watcher.observe(block.element));
}

function jump(pane, page, row, place) {
  const at = Math.floor(row / BLOCK);
  pane.blocks.slice(Math.max(0, at - 1), at + 2).forEach((block) => fill(pane, page, block));
  pane.jumped = performance.now();
  setStep(pane, pane.t.rows[row].step);
  const go = () => rowElement(pane, row)?.scrollIntoView({ block: place });
  go();
  requestAnimationFrame(go); // what was filled above has its true height now
}

function setStep(pane, step) {
  pane.step = Math.max(step, 0);
  const found = pane.t.steps[pane.step];
  pane.where.textContent = found && pane.t.steps.length > 1 ? `at step ${found.index}` : "";
}

// The step at the top of the view; a jump has said which one is meant.
function updateStep(pane) {
  if (performance.now() - pane.jumped < 300) return;
  const top = pane.scroll.getBoundingClientRect().top + 30;
  for (const block of pane.blocks) {
    if (block.element.getBoundingClientRect().bottom < top) continue;
    const rows = [...block.element.children];
    const i = rows.findIndex((element) => element.getBoundingClientRect().bottom > top);
    setStep(pane, pane.t.rows[block.from + Math.max(0, i)].step);
    return;
  }
}
