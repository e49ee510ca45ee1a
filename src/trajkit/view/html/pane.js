// One trajectory on the screen: what it is, its rows, and the strip that shows all of it.

function makePane(t) {
  const where = made("span", "where");
  const scroll = made("div", "scroll");
  const canvas = made("canvas", ""), box = made("div", "box");
  const map = made("div", "map", "", canvas, box);
  const root = made("section", "pane", "", makeHead(t, where), made("div", "view", "", scroll, map));
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `tokens of ${t.name}`);
  map.setAttribute("aria-hidden", "true");
  const pane = {
    t, root, where, scroll, map, canvas, box, blocks: [], watcher: null,
    step: 0, pinned: null, hits: [], hitsOf: new Map(), hit: -1, jumped: -1000,
  };
  makeBlocks(pane);
  scroll.append(made("p", "totals", t.totals.join(" \u00b7 ")));
  return pane;
}

function makeHead(t, where) {
  const facts = [count(t.n_steps, "step")];
  if (t.n_tokens !== null) {
    facts.push(count(t.n_tokens, "token"));
    const part = share(t.n_action_tokens, t.n_tokens);
    facts.push(`action ${t.n_action_tokens.toLocaleString("en")} (${part})`);
  }
  if (t.group !== null) facts.push(`group ${t.group}`);
  const title = made("h2", "", "", ...signed(t.name), where);
  if (t.reward !== null) title.append(made("b", "reward", `reward ${t.reward}`));
  return made("header", "head", "", title,
    made("p", "", "", ...signed([...facts, ...t.facts].join(" \u00b7 "))));
}

// Called when it stands in the document and has a size.
function startPane(pane, page) {
  pane.blocks.slice(0, 2).forEach((block) => fill(pane, page, block));
  guessHeights(pane, page.shared);
  watch(pane, page);
  setStep(pane, 0);
  drawMap(pane, page);
}
