// The frame around the panes: legend, tools, index, and what is known of a token.

const KEYS = [
  ["j  k", "next, previous step"],
  ["n  p", "next, previous trajectory"],
  ["Enter", "choose a token: the one found, or the first of this step's action"],
  ["\u2190  \u2192", "previous, next token, once one is chosen"],
  ["/", "search; Enter and Shift+Enter go on; id:198 finds an id"],
  ["o", "overlay: what the colours show"],
  ["d", "next place where drift was found"],
  ["b", "borders between tokens"],
  ["g", "the trajectories of this group side by side, best reward first"],
  ["i", "the index"],
  ["t", "theme"],
  ["Esc", "close, or forget the chosen token"],
  ["?", "these keys"],
];
const SIDES = [["\u258c", "action (trained)", "action"], ["\u00b7", "context (not trained)", "context"]];
const SIGNS = "\u27ea\u27eb one control id   \u240a newline   \u2409 tab   \u2423 space   \u27e6\u27e7 no glyph";

function button(text, title, act) {
  const made_ = made("button", "", text);
  made_.type = "button";
  made_.title = title;
  made_.addEventListener("click", act);
  return made_;
}

function buildFrame(page) {
  const legend = made("p", "legend");
  for (const [mark, text, side] of SIDES) legend.append(made("span", side, `${mark} ${text}`));
  legend.append(made("span", "signs", "", ...signed(SIGNS)));
  page.overlays = made("select", "");
  page.overlays.setAttribute("aria-label", "overlay");
  page.overlays.addEventListener("change", () => setOverlay(page, page.overlays.value));
  page.query = made("input", "");
  page.query.type = "search";
  page.query.placeholder = "search  /";
  page.query.setAttribute("aria-label", "search");
  page.query.addEventListener("input", () => runSearch(page));
  page.query.addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextHit(page, event.shiftKey ? -1 : 1);
    if (event.key === "Escape") focusPane(page);
  });
  page.found = made("span", "found");
  page.scale = made("span", "scale");
  page.help = made("dialog", "help");
  page.help.setAttribute("aria-label", "keys");
  const list = made("dl", "");
  for (const [key, text] of KEYS) list.append(made("dt", "", key), made("dd", "", text));
  page.help.append(made("h2", "", "Keys"), list,
    button("close", "Esc", () => page.help.close()));
  const leave = button("one alone", "g", () => toggleCompare(page));
  leave.className = "leave";
  const bar = made("header", "top", "", legend, made("div", "tools", "", leave,
    made("label", "", "overlay ", page.overlays), page.query, page.found,
    button("theme", "t", () => turnTheme(page)), button("keys", "?", () => page.help.showModal())));
  page.index = made("nav", "index");
  page.index.setAttribute("aria-label", "trajectories");
  page.index.addEventListener("keydown", (event) => walkIndex(page, event));
  page.stage = made("div", "panes");
  page.inspect = made("footer", "inspect");
  page.inspect.setAttribute("role", "status");
  page.swatches = {};
  for (const name of ["action", "context", "ink", "heat", "cold", "hit"]) {
    page.swatches[name] = made("span", `swatch swatch-${name}`);
  }
  document.getElementById("app").append(bar, page.scale,
    made("div", "body", "", page.index, page.stage), page.inspect, page.help,
    ...Object.values(page.swatches));
  buildIndex(page);
  tell(page, null);
}

function groups(page) {
  const found = new Map();
  page.shared.index.forEach((entry, number) => {
    const key = entry.group === null ? number : entry.group;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(number);
  });
  const reward = (number) => Number(page.shared.index[number].reward ?? NaN);
  for (const numbers of found.values()) {
    numbers.sort((a, b) => (reward(b) - reward(a)) || (isNaN(reward(a)) - isNaN(reward(b))) || a - b);
  }
  return found;
}

function buildIndex(page) {
  page.groups = groups(page);
  page.order = [...page.groups.values()].flat();
  page.links = new Map();
  for (const [key, numbers] of page.groups) {
    if (typeof key === "string") {
      const head = made("h3", "", "", made("span", "", "", ...signed(key)));
      if (numbers.length > 1) {
        const beside = button("side by side", "g", () => compare(page, numbers));
        beside.tabIndex = -1; // g does the same
        head.append(beside);
      }
      page.index.append(head);
    }
    for (const number of numbers) {
      const entry = page.shared.index[number];
      const link = button("", "", () => visit(page, number));
      link.className = "entry";
      link.title = entry.name;
      const bar = made("span", "share");
      bar.append(made("span", ""));
      bar.firstChild.style.width = entry.n_tokens ? share(entry.n_action_tokens, entry.n_tokens) : "0";
      const few = [count(entry.n_steps, "step"), entry.n_tokens === null ? "no ids" : count(entry.n_tokens, "token")];
      if (entry.n_findings) few.push(`drift ${entry.n_findings.toLocaleString("en")}`);
      link.append(made("span", "name", "", ...signed(entry.name)),
        made("span", "reward", entry.reward === null ? "" : String(entry.reward)), bar,
        made("span", "few", few.join(", ")));
      page.links.set(number, link);
      page.index.append(link);
    }
  }
  if (page.order.length < 2) page.index.hidden = true;
}

// One entry can be reached by Tab; the arrows go on from there.
function walkIndex(page, event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const links = [...page.links.values()];
  const link = links[links.indexOf(document.activeElement) + by];
  if (link) link.focus();
}

function tell(page, pane, place) {
  const row = place && pane.t.rows[place.row];
  if (!row) {
    page.inspect.replaceChildren(made("p", "", "Point at a token to see what is known of it; click it, or press Enter, for a link."));
    return;
  }
  const facts = cellFacts(page.shared, pane.t, row, place.at);
  const n = facts.ids.length;
  const step = pane.t.steps[row.step];
  const pairs = [["text", facts.text, "mono"]];
  if (facts.first !== null) {
    pairs.push([n > 1 ? "tokens" : "token", n > 1 ? `${facts.first}\u2013${facts.first + n - 1}` : facts.first]);
    pairs.push([n > 1 ? "ids" : "id", facts.ids.map((id) => id ?? "not shown").join(" ")]);
    if (facts.hex) pairs.push(["bytes", facts.hex.map((each) => each || "none").join(" | "), "mono"]);
  }
  pairs.push(["step", step ? step.index : ""], ["kind", row.kind]);
  pairs.push(["side", row.action ? "action (trained)" : "context (not trained)", row.action ? "action" : ""]);
  for (const { lane, values } of facts.numbers) {
    if (values.length) pairs.push([lane.title, values.map((v) => (v === null ? "missing" : v)).join(" | ")]);
  }
  for (const mark of marksAt(pane.t, row, facts.first, n)) {
    const ids = mark.ids === null ? "not shown" : mark.ids.join(" ") || "none";
    const last = mark.end - 1;
    const span = last > mark.start ? `tokens ${mark.start}\u2013${last}` : `token ${mark.start}`;
    const side = mark.isBehind ? "behind this token" : "before this token";
    const where = mark.isAdded ? side : span;
    pairs.push(["drift", `${where}: ${mark.told.join(" \u00b7 ")}, other ids ${ids}`, "mono"]);
  }
  const list = made("dl", "");
  for (const [name, value, look] of pairs) {
    list.append(made("div", "", "", made("dt", "", name), made("dd", look || "", "", ...signed(String(value)))));
  }
  page.inspect.replaceChildren(list);
}
