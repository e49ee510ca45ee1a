// Elements out of text: the only way anything of the data gets into the document.

let controls = []; // how the control pictures from U+2400 on are drawn

function made(tag, className, text, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function count(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

function share(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)}%` : "0%";
}

// Text in which control pictures, which few fonts have, are drawn by the style sheet; what is
// copied or searched is the picture itself.
function signed(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(/[\u2400-\u2421]/g)) {
    const code = match[0].charCodeAt(0) - 0x2400;
    const sign = made("span", "sign", match[0]);
    sign.dataset.name = controls[code];
    parts.push(text.slice(from, match.index), sign);
    from = match.index + 1;
  }
  parts.push(text.slice(from));
  return parts.filter((part) => part !== "");
}
