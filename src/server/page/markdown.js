// Markdown to DOM nodes. What a model says is hostile: nodes are made one by one, text goes in as text, and the only attributes are the
// class of a code block and the address of a link with a scheme from a short list. Pictures become links: nothing is fetched. Time is
// linear in the text but for nesting, which is bounded.

import { copyText } from "./copy.js";

const MAX_NESTING = 12;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

// children: nodes and texts, or one of them; there may be more than a call takes arguments.
function element(name, children) {
  const node = document.createElement(name);
  for (const child of Array.isArray(children) ? children : [children]) node.append(child);
  return node;
}

export function safeAddress(address) {
  try {
    const url = new URL(address);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// Searches that look far, again and again, would take time by the square of the text: together they may go this far.
class Finder {
  constructor(text) {
    this.left = 20 * text.length + 10000;
  }
  find(text, mark, from) {
    if (this.left <= 0) return -1;
    const end = text.indexOf(mark, from);
    this.left -= (end < 0 ? text.length : end) - from + 1;
    return end;
  }
}

function link(text, address, depth, finder) {
  const safe = safeAddress(address);
  if (safe === null) return null;
  const node = element("a", inline(text, depth + 1, finder));
  node.href = safe;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

// Pairs of marks around text, the longer first.
const PAIRS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

function isWord(c) {
  return c !== undefined && /[\p{L}\p{N}]/u.test(c);
}

// [text](address), ![text](address): where it ends, or null.
function bracketed(text, at, finder) {
  const open = text[at] === "!" ? at + 1 : at;
  const close = finder.find(text, "](", open);
  if (close < 0 || close - open > 1000) return null;
  const end = finder.find(text, ")", close);
  if (end < 0 || end - close > 2100) return null;
  const address = text.slice(close + 2, end).trim().split(/\s/)[0];
  return { label: text.slice(open + 1, close), address, end: end + 1 };
}

export function inline(text, depth = 0, finder = new Finder(text)) {
  const nodes = [];
  let plain = "";
  const missing = new Set();  // marks that close nowhere: not searched for again
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  const push = (node) => {
    flush();
    nodes.push(node);
  };
  scan: for (let i = 0; i < text.length;) {
    const c = text[i];
    if (c === "\\" && i + 1 < text.length && /[!-/:-@[-`{-~]/.test(text[i + 1])) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (c === "`") {
      let ticks = 1;
      while (text[i + ticks] === "`") ++ticks;
      const mark = "`".repeat(Math.min(ticks, 64));
      const end = ticks > 64 || missing.has(mark) ? -1 : finder.find(text, mark, i + ticks);
      if (end >= 0) {
        push(element("code", text.slice(i + ticks, end)));
        i = end + ticks;
        continue;
      }
      missing.add(mark);
      plain += text.slice(i, i + ticks);
      i += ticks;
      continue;
    }
    if ((c === "[" || (c === "!" && text[i + 1] === "[")) && depth < MAX_NESTING && !missing.has("](")) {
      const found = bracketed(text, i, finder);
      const node = found && link(found.label || found.address, found.address, depth, finder);
      if (node) {
        push(node);
        i = found.end;
        continue;
      }
      if (finder.find(text, "](", i) < 0) missing.add("](");
    }
    if ((c === "h" || c === "H") && !isWord(text[i - 1]) && /^https?:\/\//i.test(text.slice(i, i + 8))) {
      const address = /^[^\s<>"'`()[\]]{1,2000}/.exec(text.slice(i, i + 2000))[0];
      const node = safeAddress(address) && element("a", address);
      if (node) {
        node.href = safeAddress(address);
        node.target = "_blank";
        node.rel = "noopener noreferrer nofollow";
        push(node);
        i += address.length;
        continue;
      }
    }
    if (depth < MAX_NESTING && (c === "*" || c === "_" || c === "~")) {
      for (const [mark, tag] of PAIRS) {
        if (!text.startsWith(mark, i) || missing.has(mark)) continue;
        if (/\s/.test(text[i + mark.length] ?? " ") || (mark[0] === "_" && isWord(text[i - 1]))) continue;
        let end = finder.find(text, mark, i + mark.length + 1);
        if (mark.length === 1) while (end >= 0 && text[end + 1] === mark) end = finder.find(text, mark, end + 2);
        if (end < 0) {
          missing.add(mark);
          continue;
        }
        if (/\s/.test(text[end - 1])) continue;
        push(element(tag, inline(text.slice(i + mark.length, end), depth + 1, finder)));
        i = end + mark.length;
        continue scan;
      }
    }
    if (c === "\n") {
      push(document.createElement("br"));
      ++i;
      continue;
    }
    plain += c;
    ++i;
  }
  flush();
  return nodes;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const LIST = /^( {0,12})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const isRule = (line) => /^[\s|:-]+$/.test(line) && line.includes("-");
const isRow = (line) => line.includes("|");

function startsBlock(line) {
  return FENCE.test(line) || LIST.test(line) || /^ {0,3}(#{1,6}\s|>|([-*_])(\s*\3){2,}\s*$)/.test(line);
}

// Pieces of the text that are rendered on their own, as source lines.
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) {
      ++i;
      continue;
    }
    const begin = i;
    const fence = FENCE.exec(lines[i]);
    if (fence) {
      ++i;
      while (i < lines.length && !(lines[i].trim().startsWith(fence[1]) && !lines[i].trim().slice(fence[1].length).replaceAll(fence[1][0], "").trim())) ++i;
      ++i;
    } else if (LIST.test(lines[i])) {
      const first = LIST.exec(lines[i]);
      const goes = (line) => {
        const match = LIST.exec(line ?? "");
        return match && (match[1].length > first[1].length + 1 || /\d/.test(match[2]) === /\d/.test(first[2]));
      };
      ++i;
      while (i < lines.length && (goes(lines[i]) || (/^\s+\S/.test(lines[i]) && !LIST.test(lines[i])) || (!lines[i].trim() && goes(lines[i + 1])))) ++i;
    } else if (/^ {0,3}>/.test(lines[i])) {
      while (i < lines.length && /^ {0,3}>/.test(lines[i])) ++i;
    } else if (isRow(lines[i]) && isRule(lines[i + 1] ?? "")) {
      while (i < lines.length && isRow(lines[i])) ++i;
      i = Math.max(i, begin + 2);
    } else {
      const single = startsBlock(lines[i]);
      ++i;
      while (!single && i < lines.length && lines[i].trim() && !startsBlock(lines[i])) ++i;
    }
    found.push(lines.slice(begin, i).join("\n"));
  }
  return found;
}

function codeBlock(lines, fence) {
  const closed = lines.length > 1 && lines[lines.length - 1].trim().startsWith(fence[1]);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const code = element("code", text);
  const language = /^[\w+#.-]{1,30}/.exec(fence[2].trim());
  if (language) code.className = "language-" + language[0];
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", () => copyText(text).then(() => { copy.textContent = "Copied"; }));
  return element("figure", [element("pre", code), copy]);
}

function list(lines, depth) {
  const first = LIST.exec(lines[0]);
  const node = document.createElement(/\d/.test(first[2]) ? "ol" : "ul");
  if (node.tagName === "OL" && parseInt(first[2], 10) !== 1) node.start = parseInt(first[2], 10);
  let item = [];
  const end = () => {
    if (!item.length) return;
    const [head, ...rest] = item;
    const inner = element("li", inline(head));
    const indent = rest.filter((line) => line.trim()).reduce((least, line) => Math.min(least, line.search(/\S/)), 12);
    for (const child of render(rest.map((line) => line.slice(indent)).join("\n"), depth + 1)) inner.append(child);
    node.append(inner);
    item = [];
  };
  for (const line of lines) {
    const match = LIST.exec(line);
    if (match && match[1].length <= first[1].length + 1) {
      end();
      item = [match[3]];
    } else {
      item.push(line);
    }
  }
  end();
  return node;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 200).map((cell) => cell.trim());
  const row = (line, tag) => element("tr", cells(line).map((cell) => element(tag, inline(cell))));
  return element("table", [element("thead", row(lines[0], "th")), element("tbody", lines.slice(2).map((line) => row(line, "td")))]);
}

function block(source, depth) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return codeBlock(lines, fence);
  const heading = /^ {0,3}(#{1,6})\s(.*)$/.exec(lines[0]);
  if (heading && lines.length === 1) {
    let end = heading[2].length;
    while (end > 0 && "# ".includes(heading[2][end - 1])) --end;
    return element("h" + Math.min(heading[1].length + 2, 6), inline(heading[2].slice(0, end).trim()));
  }
  if (lines.length === 1 && /^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(lines[0])) return document.createElement("hr");
  if (depth < MAX_NESTING) {
    if (LIST.test(lines[0])) return list(lines, depth);
    if (/^ {0,3}>/.test(lines[0])) return element("blockquote", render(lines.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"), depth + 1));
  }
  if (lines.length > 1 && isRow(lines[0]) && isRule(lines[1])) return table(lines);
  return element("p", inline(source));
}

export function render(text, depth = 0) {
  return blocks(text).map((source) => block(source, depth));
}

// Makes a container show the text. What stands unchanged before its end stays as it is, so that a stream costs little and selections last.
const shown = new WeakMap();
export function show(container, text) {
  const before = shown.get(container) ?? [];
  const now = blocks(text);
  let same = 0;
  while (same < before.length && same < now.length && before[same] === now[same]) ++same;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const source of now.slice(same)) container.append(block(source, 0));
  shown.set(container, now);
}
