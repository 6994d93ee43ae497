// Turns keys, clicks and selections into requests, and puts the answers' HTML into the page.
// Places are counted in code points, as the server counts them; no text is ever sent.
"use strict";

const main = document.getElementById("main");
const said = document.getElementById("said");
const help = document.getElementById("help");
let busy = false;
let kept = null; // the latest selection inside the text: a tap on a button may take the browser's own away

const article = () => main.querySelector("article");
const box = () => document.getElementById("text");
const points = (string) => Array.from(string).length;

// -- selections ------------------------------------------------------------------------------------------------------

function selection() {
  const chosen = getSelection();
  const text = box();
  if (!text || !chosen.rangeCount || chosen.isCollapsed) return null;
  const range = chosen.getRangeAt(0);
  if (!range.intersectsNode(text)) return null;
  let start = Infinity, end = -1;
  for (const span of text.querySelectorAll("[data-at]")) {
    if (!range.intersectsNode(span)) continue;
    let low = Number(span.dataset.at), high = low + Number(span.dataset.len);
    const node = span.firstChild;
    if (node && range.endContainer === node) high = low + points(node.data.slice(0, range.endOffset));
    if (node && range.startContainer === node) low += points(node.data.slice(0, range.startOffset));
    if (high > low) { start = Math.min(start, low); end = Math.max(end, high); }
  }
  return end > start ? { start, end } : null;
}

document.addEventListener("selectionchange", () => {
  const now = selection();
  if (now) kept = now;
  const line = document.getElementById("chosen");
  if (!line) return;
  const words = now ? getSelection().toString().trim() : "";
  const found = now && getSelection().anchorNode.parentElement.closest("mark.found, mark.alarm");
  const inside = found && Number(found.dataset.start) <= now.start && now.end <= Number(found.dataset.end);
  const shown = "“" + (words.length > 60 ? words.slice(0, 60) + "…" : words) + "”";
  if (!words) line.textContent = "Select what the policy missed, then its type:";
  else line.textContent = inside ? `${shown} was found by the policy. F: false alarm, or not.` : `Selected: ${shown}. Its type:`;
});

// Words as a reviewer thinks of them: names, numbers and addresses with the signs inside them, not those around them.
const WORD = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|[\p{L}\p{N}\p{M}][\p{L}\p{N}\p{M}'’@._+\/:-]*[\p{L}\p{N}\p{M}]|[\p{L}\p{N}]/gu;
let words = [], from = -1, to = -1;

function readWords() {
  words = []; from = to = -1; kept = null;
  const text = box();
  if (!text) return;
  for (const span of text.querySelectorAll("[data-at]")) {
    const node = span.firstChild;
    if (node) for (const match of node.data.matchAll(WORD)) words.push([node, match.index, match.index + match[0].length]);
  }
}

function choose() {
  if (to < 0) return;
  const low = words[Math.min(from, to)], high = words[Math.max(from, to)];
  getSelection().setBaseAndExtent(low[0], low[1], high[0], high[2]);
  const node = words[to][0].parentElement;
  node.scrollIntoView({ block: "nearest" });
}

function step(by, extend) {
  if (!words.length) return;
  to = Math.max(0, Math.min(words.length - 1, to < 0 ? (by > 0 ? 0 : words.length - 1) : to + by));
  if (!extend || from < 0) from = to;
  choose();
}

function stretch(by) {
  const chosen = getSelection();
  if (!selection()) return;
  const range = chosen.getRangeAt(0);
  const node = range.endContainer;
  if (node.nodeType !== Node.TEXT_NODE) return;
  const next = range.endOffset + by;
  if (next > (node === range.startContainer ? range.startOffset : 0) && next <= node.data.length) {
    chosen.setBaseAndExtent(range.startContainer, range.startOffset, node, next);
  }
}

function jump(by) {
  const marks = Array.from(box().querySelectorAll("mark[data-label]"));
  if (!marks.length) return;
  const here = selection();
  let at = here ? marks.findIndex((mark) => Number(mark.dataset.start) === here.start) : -1;
  at = at < 0 ? (by > 0 ? 0 : marks.length - 1) : (at + by + marks.length) % marks.length;
  const start = marks[at].dataset.start, end = marks[at].dataset.end;
  const all = Array.from(box().querySelectorAll(`mark[data-start="${start}"][data-end="${end}"] [data-at]`));
  getSelection().setBaseAndExtent(all[0], 0, all[all.length - 1], all[all.length - 1].childNodes.length);
  marks[at].scrollIntoView({ block: "nearest" });
}

// The finding, or the mark, that the selection touches.
function touched(doing) {
  const here = selection() || kept;
  const items = Array.from(main.querySelectorAll(".secrets button")).filter((one) => doing.includes(one.dataset.do));
  if (here) return items.find((one) => Number(one.dataset.start) < here.end && here.start < Number(one.dataset.end));
  return items.length === 1 ? items[0] : undefined;
}

// -- requests --------------------------------------------------------------------------------------------------------

async function send(action) {
  if (busy) return;
  busy = true;
  const { place, version, last, piece } = article().dataset;
  const facts = { place: Number(place), version: Number(version), last: Number(last), piece: Number(piece) };
  try {
    const response = await fetch("/act", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...facts, ...action }),
    });
    const answer = await response.json();
    if (answer.main === undefined) {
      said.textContent = answer.error;
      said.className = "wrong";
      return;
    }
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.do : null;
    main.innerHTML = answer.main; // the server has escaped all text
    document.getElementById("bound").innerHTML = answer.bound;
    said.textContent = answer.said;
    said.className = response.ok ? "" : "wrong";
    if (location.pathname + location.search !== answer.path) {
      history.pushState(null, "", answer.path);
      scrollTo(0, 0);
    }
    readWords();
    const again = focused && main.querySelector(`[data-do="${focused}"]:not(:disabled)`);
    (again || box() || main.querySelector("button")).focus({ preventScroll: true });
  } catch {
    said.textContent = "Not saved: the server does not answer. Start `confide review` again and open its link.";
    said.className = "wrong";
  } finally {
    busy = false;
  }
}

function go(by) {
  const { place, piece, pieces } = article().dataset;
  const next = Number(piece) + by;
  if (next >= 0 && next < Number(pieces)) location.assign(`/record/${Number(place) + 1}?piece=${next}`);
  else if (Number(place) + by >= 0) location.assign(`/record/${Number(place) + 1 + by}`);
}

function perform(name, button) {
  if (!article()) return;
  const span = button ? { start: Number(button.dataset.start), end: Number(button.dataset.end) } : {};
  if (name === "help") help.showModal();
  else if (name === "back") go(-1);
  else if (name === "forward") go(1);
  else if (name === "answer" && Number(article().dataset.piece) + 1 < Number(article().dataset.pieces)) go(1);
  else if (name === "mark") {
    const here = selection() || kept;
    if (here) send({ do: "mark", type: button.dataset.type, ...here });
    else { said.textContent = "Select some text of the record first."; said.className = "wrong"; }
  } else send({ do: name, ...(["flag", "unflag", "unmark"].includes(name) ? span : {}) });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-do]");
  if (button && !button.disabled) perform(button.dataset.do, button);
});

// A press on a type must not take the selection away before the click arrives.
document.addEventListener("pointerdown", (event) => {
  if (event.target.closest(".types button")) event.preventDefault();
});

const LETTERS = { s: "skip", u: "undo", b: "back", n: "forward", m: "more" };

document.addEventListener("keydown", (event) => {
  if (help.open || event.ctrlKey || event.metaKey || event.altKey || event.repeat && !event.key.startsWith("Arrow")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const enabled = (name) => main.querySelector(`[data-do="${name}"]:not(:disabled)`);
  if (key === "Enter") {
    if (event.target.closest("button, a")) return; // a focused button does its own thing
    if (enabled("answer")) perform("answer");
    else return;
  } else if (key === "?") help.showModal();
  else if (key in LETTERS) { if (enabled(LETTERS[key])) perform(LETTERS[key]); else return; }
  else if (!box()) return;
  else if (key === "ArrowRight" || key === "ArrowLeft") step(key === "ArrowRight" ? 1 : -1, event.shiftKey);
  else if (key === "ArrowDown" || key === "ArrowUp") { if (!box().querySelector("mark")) return; jump(key === "ArrowDown" ? 1 : -1); }
  else if (key === ">" || key === "<") stretch(key === ">" ? 1 : -1);
  else if (/^[0-9]$/.test(key)) {
    const button = main.querySelector(`.types [data-key="${key}"]`);
    if (button) perform("mark", button);
  } else if (key === "f" || key === "x" || key === "Delete") {
    const button = touched(key === "f" ? ["flag", "unflag"] : ["unmark"]);
    if (button) perform(button.dataset.do, button);
    else { said.textContent = "Choose a marked secret first, with ↑ or ↓."; said.className = "wrong"; }
  } else return;
  event.preventDefault();
});

// A click places the word cursor, so that arrow keys go on from there.
document.addEventListener("mouseup", () => {
  const chosen = getSelection();
  const at = words.findIndex(([node, , end]) => node === chosen.focusNode && chosen.focusOffset <= end);
  if (at >= 0) from = to = at;
});

window.addEventListener("popstate", () => location.reload());
readWords();
if (box()) box().focus({ preventScroll: true });
