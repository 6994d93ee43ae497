// Turns keys, clicks and selections into requests, and puts the answers' HTML into the page.
// Places are counted in code points, as the server counts them; no text is ever sent.
"use strict";

const main = document.getElementById("main");
const bound = document.getElementById("bound");
const said = document.getElementById("said");
const heard = document.getElementById("heard");
const help = document.getElementById("help");
const keys = document.getElementById("keys");

const article = () => main.querySelector("article");
const box = () => document.getElementById("text");
const parts = () => Array.from(box() ? box().querySelectorAll("[data-at]") : []);
const items = () => Array.from(main.querySelectorAll(".secrets button"));
const points = (string) => Array.from(string).length;

function tell(words, wrong = false) {
  said.textContent = words;
  said.className = wrong ? "wrong" : "";
}

// -- the text: its signs, its words, and what is selected ------------------------------------------------------------

// Words as a reviewer thinks of them: names, numbers and addresses with the signs inside them; then what stands around
// them, so that every sign which is no blank can be reached.
const WORD = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|[\p{L}\p{N}\p{M}][\p{L}\p{N}\p{M}\u200c\u200d'’@._+\/:-]*[\p{L}\p{N}\p{M}]|[\p{L}\p{N}]|[^\s\p{L}\p{N}]+/gu;
let signs = []; // the code points of the part that is shown
let low = 0; // the place of the first
let words = [], from = -1, to = -1; // all words, and those between which the arrow keys have chosen

const real = (name) => (name.startsWith("U+") ? String.fromCodePoint(parseInt(name.slice(2), 16)) : "\ufffc");

function readWords() {
  signs = []; words = [];
  for (const part of parts()) {
    const { len, sign } = part.dataset;
    for (const one of sign ? Array(Number(len)).fill(real(sign)) : part.textContent) signs.push(one);
  }
  low = parts().length ? Number(parts()[0].dataset.at) : 0;
  const all = signs.join("");
  let at = low, done = 0;
  for (const match of all.matchAll(WORD)) {
    const start = at + points(all.slice(done, match.index));
    at = start + points(match[0]);
    done = match.index + match[0].length;
    words.push({ start, end: at });
  }
}

function selection() {
  const chosen = getSelection();
  if (!box() || !chosen.rangeCount || chosen.isCollapsed) return null;
  const range = chosen.getRangeAt(0);
  let start = Infinity, end = -1;
  for (const part of parts()) {
    if (!range.intersectsNode(part)) continue;
    let first = Number(part.dataset.at), last = first + Number(part.dataset.len);
    const node = part.firstChild;
    if (node && range.endContainer === node) last = first + points(node.data.slice(0, range.endOffset));
    if (node && range.startContainer === node) first += points(node.data.slice(0, range.startOffset));
    if (last > first) { start = Math.min(start, first); end = Math.max(end, last); }
  }
  return end > start ? { start, end } : null;
}

function rangeOf({ start, end }) {
  const range = document.createRange();
  for (const part of parts()) {
    const first = Number(part.dataset.at), last = first + Number(part.dataset.len), node = part.firstChild;
    const units = (place) => Array.from(node.data).slice(0, place - first).join("").length;
    if (first <= start && start < last) { if (node) range.setStart(node, units(start)); else range.setStartBefore(part); }
    if (first < end && end <= last) { if (node) range.setEnd(node, units(end)); else range.setEndAfter(part); }
  }
  return range;
}

function select(span, seen = span) {
  const { startContainer, startOffset, endContainer, endOffset } = rangeOf(span);
  getSelection().setBaseAndExtent(startContainer, startOffset, endContainer, endOffset);
  const text = box(), frame = text.getBoundingClientRect(), word = rangeOf(seen).getBoundingClientRect();
  if (word.top < frame.top) text.scrollTop -= frame.top - word.top + 20;
  else if (word.bottom > frame.bottom) text.scrollTop += word.bottom - frame.bottom + 20;
  text.scrollIntoView({ block: "nearest" });
}

// The arrow keys go on from here.
function follow({ start, end }) {
  from = words.findIndex((word) => word.end > start);
  to = words.findLastIndex((word) => word.start < Math.max(end, start + 1));
  if (from < 0 || to < from) from = to;
}

function step(by, extend) {
  if (!words.length) return;
  to = Math.max(0, Math.min(words.length - 1, to < 0 ? (by > 0 ? 0 : words.length - 1) : to + by));
  if (!extend || from < 0) from = to;
  select({ start: words[Math.min(from, to)].start, end: words[Math.max(from, to)].end }, words[to]);
}

// One code point more or less at an end of the selection; a run of signs that cannot be seen goes as a whole.
function stretch(side, by) {
  const here = selection();
  if (!here) return;
  let place = here[side] + by;
  for (const { dataset } of box().querySelectorAll(".sign")) {
    const first = Number(dataset.at), last = first + Number(dataset.len);
    if (first < place && place < last) place = by > 0 ? last : first;
  }
  const next = { ...here, [side]: place };
  if (next.start >= low && next.end <= low + signs.length && next.start < next.end) {
    select(next, side === "start" ? { ...next, end: place + 1 } : { ...next, start: place - 1 });
    follow(next);
  }
}

function jump(by) {
  const marks = Array.from(box().querySelectorAll("mark[data-label]")).map(({ dataset }) =>
    ({ start: Math.max(low, Number(dataset.start)), end: Math.min(low + signs.length, Number(dataset.end)) }));
  const here = selection();
  const next = by > 0 ? marks.find((one) => here && one.start > here.start) : marks.findLast((one) => here && one.start < here.start);
  const span = next || marks.at(by > 0 ? 0 : -1);
  select(span);
  follow(span);
}

// The words between two places, as the page shows them.
function quoted({ start, end }) {
  const name = (sign) => (/[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Zl}\p{Zp}\ufffc]/u.test(sign) && !/[\n\t\u200c\u200d]/.test(sign) ? "▯" : sign);
  const all = signs.slice(start - low, end - low).map(name);
  return "“" + (all.length > 60 ? all.slice(0, 60).join("") + "…" : all.join("").trim()) + "”";
}

// Says what is selected: in a line beside the types, and to those who hear the page.
function describe() {
  const here = selection();
  const item = here && items().find(({ dataset }) => Number(dataset.start) <= here.start && here.end <= Number(dataset.end));
  let words = "";
  if (item) words = `${quoted(here)}: ${item.parentElement.querySelector(".kind").textContent}.`;
  if (item && keys.checked) words += ` ${item.textContent}: ${item.dataset.do === "unmark" ? "X" : "F"}`;
  else if (here) words = `Selected: ${quoted(here)}`;
  if (heard.textContent !== words) heard.textContent = words;
  const line = document.getElementById("chosen");
  if (line) line.textContent = item ? words : here ? `${words}. Its type:` : "Select what the policy missed, then its type:";
}
document.addEventListener("selectionchange", describe);

// -- requests: one at a time, in the order in which they were asked for ------------------------------------------------

const PATIENCE = 10_000; // milliseconds
const waiting = []; // each with its name, the record on which it was asked for, and a function that makes the request or says why not
let working = false;
let shown = ""; // the latest of the panels with the bound

function ask(name, make, anywhere = false) {
  const { place, piece } = article().dataset;
  waiting.push({ name, make, anywhere, place, piece });
  if (!working) work();
}

async function work() {
  working = true;
  main.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => tell("Saving…"), 150);
  try {
    while (waiting.length) {
      const wrong = await send(waiting[0]);
      const [, ...lost] = waiting.splice(0, wrong ? waiting.length : 1);
      const after = lost.map((one) => one.name).join(", ");
      if (wrong) tell(after ? `${wrong} What you did after it was not saved either: ${after}.` : wrong, true);
    }
  } finally {
    clearTimeout(slow);
    working = false;
    main.removeAttribute("aria-busy");
  }
}

// Out: what went wrong, if something did.
async function send({ name, make, anywhere, place, piece }) {
  const now = article().dataset;
  if (!anywhere && (now.place !== place || now.piece !== piece)) {
    return `Not done, because you could not see this record yet when you pressed the key: ${name}.`;
  }
  const action = make();
  if (typeof action === "string") return action;
  const facts = { place: Number(now.place), version: Number(now.version), last: Number(now.last), piece: Number(now.piece) };
  let response, answer;
  try {
    response = await fetch("/act", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...facts, ...action }),
      signal: AbortSignal.timeout(PATIENCE),
    });
    answer = await response.json();
  } catch (error) {
    if (error.name === "TimeoutError") return `No answer for ${PATIENCE / 1000} seconds. Perhaps not saved: ${name}. Reload the page to see.`;
    return `Not saved: ${name}. The server does not answer; start “confide review” again and open its link.`;
  }
  if (answer.main === undefined) return `Not saved: ${name}. ${answer.error}`;
  show(answer);
  return response.ok ? null : answer.said;
}

function show(answer) {
  const { place, piece } = article().dataset, here = selection(), scrolled = box() ? box().scrollTop : 0;
  const { do: doing, type, start, end } = main.contains(document.activeElement) ? document.activeElement.dataset : {};
  const lost = main.contains(document.activeElement) || document.activeElement === document.body;
  main.innerHTML = answer.main; // the server has escaped all text
  if (shown !== answer.bound) bound.innerHTML = shown = answer.bound; // read aloud again only if it is new
  tell(answer.said);
  if (location.pathname + location.search !== answer.path) {
    history.pushState(null, "", answer.path);
    scrollTo(0, 0);
    if (box()) box().scrollIntoView({ block: "nearest" });
  }
  readWords();
  if (article().dataset.place === place && article().dataset.piece === piece) {
    if (box()) box().scrollTop = scrolled;
    if (box() && here) {
      const { startContainer, startOffset, endContainer, endOffset } = rangeOf(here);
      getSelection().setBaseAndExtent(startContainer, startOffset, endContainer, endOffset);
    }
  } else from = to = -1;
  describe();
  if (!lost) return;
  const again = Array.from(main.querySelectorAll("button:enabled")).find(({ dataset }) =>
    start === undefined ? dataset.do === doing && dataset.type === type : dataset.start === start && dataset.end === end);
  (again || box() || main.querySelector("button")).focus({ preventScroll: true });
}

// -- what can be asked for ---------------------------------------------------------------------------------------------

const NAMES = { answer: "“nothing more was missed”", skip: "the skip", undo: "the undo", more: "drawing more", flag: "“false alarm”", unflag: "“a secret after all”", unmark: "removing the mark" };

function go(by) {
  const { place, piece, pieces } = article().dataset;
  const next = Number(piece) + by, there = Number(place) + by;
  const inside = next >= 0 && next < Number(pieces);
  if (!inside && there < 0) return;
  ask(by > 0 ? "going on" : "going back", () => ({ do: "show", ...(inside ? { piece: next } : { place: there, piece: 0 }) }));
}

function mark(type, here) {
  ask(here ? `${quoted(here)} as ${type}` : "the mark", () => (here ? { do: "mark", type, ...here } : "Select some text of the record first."));
}

// The finding, or the mark, that was selected when the key was pressed, as it stands when its turn comes.
function change(name, doing) {
  const here = selection();
  ask(here ? `${name} for ${quoted(here)}` : name, () => {
    const item = here && items().find(({ dataset }) => doing.includes(dataset.do) && Number(dataset.start) < here.end && here.start < Number(dataset.end));
    if (!item) return "Choose a marked secret first, with ↑ or ↓.";
    return { do: item.dataset.do, start: Number(item.dataset.start), end: Number(item.dataset.end) };
  });
}

function perform(name) {
  const { piece, pieces } = article().dataset;
  if (name === "help") openHelp();
  else if (name === "back") go(-1);
  else if (name === "forward" || name === "answer" && Number(piece) + 1 < Number(pieces)) go(1);
  else ask(NAMES[name], () => ({ do: name }), name === "undo"); // an undo takes back the latest action, whatever is shown
}

let kept = null; // the selection when a type was pressed: a tap may take the browser's own away before the click

document.addEventListener("pointerdown", (event) => {
  const type = event.target.closest(".types button");
  kept = type ? selection() : null;
  if (type) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-do]");
  if (!button) return;
  const { do: doing, type, start, end } = button.dataset;
  if (doing === "mark") mark(type, selection() || kept);
  else if (start !== undefined) ask(`${NAMES[doing]} for ${quoted({ start: Number(start), end: Number(end) })}`, () => ({ do: doing, start: Number(start), end: Number(end) }));
  else perform(doing);
  kept = null;
});

// -- keys --------------------------------------------------------------------------------------------------------------

const LETTERS = { s: "skip", u: "undo", b: "back", n: "forward", m: "more" };
const ENDS = { ">": ["end", 1], "<": ["end", -1], ".": ["start", 1], ",": ["start", -1] };

function openHelp() {
  help.showModal();
  help.scrollTop = 0;
}

document.addEventListener("keydown", (event) => {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (help.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (key.length === 1 && !keys.checked) return;
  if (event.repeat && !key.startsWith("Arrow") && !(key in ENDS)) return;
  kept = null;
  const enabled = (name) => main.querySelector(`[data-do="${name}"]:enabled`);
  if (key === "Enter") {
    if (event.target.closest("button, a")) return; // a focused button does its own thing
    if (!enabled("answer")) return;
    perform("answer");
  } else if (key === "?") openHelp();
  else if (key in LETTERS) {
    if (enabled(LETTERS[key]) || key === "u" && working) perform(LETTERS[key]);
    else return;
  } else if (!box()) return;
  else if (key === "ArrowRight" || key === "ArrowLeft") step(key === "ArrowRight" ? 1 : -1, event.shiftKey);
  else if (key === "ArrowDown" || key === "ArrowUp") {
    if (!box().querySelector("mark")) return;
    jump(key === "ArrowDown" ? 1 : -1);
  } else if (key in ENDS) stretch(...ENDS[key]);
  else if (/^[0-9]$/.test(key)) {
    const type = main.querySelector(`.types [data-key="${key}"]`);
    if (type) mark(type.dataset.type, selection());
  } else if (key === "f") change("the change of a finding", ["flag", "unflag"]);
  else if (key === "x" || key === "Delete") change("removing the mark", ["unmark"]);
  else return;
  event.preventDefault();
});

// Those who speak to their computer, or hit keys by chance, can switch single keys off.
function switchKeys() {
  document.body.classList.toggle("without-keys", !keys.checked);
  localStorage.setItem("confide-keys", keys.checked ? "on" : "off");
}
keys.checked = localStorage.getItem("confide-keys") !== "off";
keys.addEventListener("change", switchKeys);
switchKeys();

// A click places the word cursor, so that arrow keys go on from there.
document.addEventListener("mouseup", () => {
  const { focusNode, focusOffset } = getSelection();
  const part = focusNode && focusNode.nodeType === Node.TEXT_NODE && focusNode.parentElement.closest("#text [data-at]");
  if (!part) return;
  const place = Number(part.dataset.at) + points(focusNode.data.slice(0, focusOffset));
  follow(selection() || { start: place, end: place });
});

window.addEventListener("beforeunload", (event) => { if (working) event.preventDefault(); });
window.addEventListener("popstate", () => location.reload());
readWords();
if (box()) {
  box().scrollIntoView({ block: "nearest" });
  box().focus({ preventScroll: true });
}
