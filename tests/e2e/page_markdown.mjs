// The page's Markdown, against a document of a few lines: what a model says becomes text and a few harmless elements, in linear time.
// usage: node page_markdown.mjs FOLDER_OF_THE_PAGE
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

class Text {
  constructor(data) { this.data = data; }
  get textContent() { return this.data; }
}
class Element {
  constructor(name) {
    this.tagName = name.toUpperCase();
    this.childNodes = [];
    this.listeners = [];
  }
  append(...nodes) {
    for (const node of nodes) {
      const child = typeof node === "string" ? new Text(node) : node;
      child.parent = this;
      this.childNodes.push(child);
    }
  }
  get lastChild() { return this.childNodes.at(-1); }
  remove() { this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); }
  get textContent() { return this.childNodes.map((node) => node.textContent).join(""); }
  set textContent(text) { this.childNodes = [new Text(text)]; }
  addEventListener(event) { this.listeners.push(event); }
}
// innerHTML, setAttribute and their like are not there: whoever used them would fail here.
globalThis.document = { createElement: (name) => new Element(name), createTextNode: (text) => new Text(text) };

// A copy beside its one import, which is replaced: these files are modules because the page says so.
const folder = process.argv[2];
const scratch = mkdtempSync(join(tmpdir(), "page-"));
process.on("exit", () => rmSync(scratch, { recursive: true }));
writeFileSync(join(scratch, "markdown.mjs"), readFileSync(join(folder, "markdown.js"), "utf8").replace("./copy.js", "./copy.mjs"));
writeFileSync(join(scratch, "copy.mjs"), "export const copyText = async () => {};");
const { render, show, safeAddress } = await import(pathToFileURL(join(scratch, "markdown.mjs")));

function html(node) {
  if (node instanceof Text) return node.data;
  const name = node.tagName.toLowerCase();
  if (name === "br" || name === "hr") return `<${name}>`;
  const more = (node.href ? ` href=${node.href}` : "") + (node.className ? ` class=${node.className}` : "") + (node.start ? ` start=${node.start}` : "");
  return `<${name}${more}>${node.childNodes.map(html).join("")}</${name}>`;
}
const of = (text) => render(text).map(html).join("");

const cases = [
  ["Hello *you*, **all** of `x*y*`", "<p>Hello <em>you</em>, <strong>all</strong> of <code>x*y*</code></p>"],
  ["a\nb\n\nc", "<p>a<br>b</p><p>c</p>"],
  ["# One #\n## Two", "<h3>One</h3><h4>Two</h4>"],
  ["- a\n- b\n  - c\n\n1. x", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>x</li></ol>"],
  ["3. x\n4. y", "<ol start=3><li>x</li><li>y</li></ol>"],
  ["```js\na < b && c\n```\nend", "<figure><pre><code class=language-js>a < b && c</code></pre><button>Copy</button></figure><p>end</p>"],
  ["```\nnever closed", "<figure><pre><code>never closed</code></pre><button>Copy</button></figure>"],
  ["> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"],
  ["| a | b |\n|---|:-:|\n| 1 | 2 |", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"],
  ["[x](https://a.example/b) and https://c.example/d.", "<p><a href=https://a.example/b>x</a> and <a href=https://c.example/d.>https://c.example/d.</a>"],
  ["snake_case_name and 2*3*4", "<p>snake_case_name and 2<em>3</em>4</p>"],
  ["\\*not\\*", "<p>*not*</p>"],
  ["---", "<hr>"],
];
for (const [text, wanted] of cases) assert.ok(of(text).startsWith(wanted), `${JSON.stringify(text)}: ${of(text)}`);

// Hostile text stays text, hostile addresses make no link, pictures are not fetched.
for (const text of ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<a href=javascript:alert(1)>x</a>", "<svg onload=alert(1)>"])
  assert.equal(of(text), `<p>${text}</p>`);
for (const address of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "vbscript:x",
  "file:///etc/passwd", "//evil.example", "/v1/stats", "blob:x", "\u0001javascript:alert(1)"]) {
  assert.equal(safeAddress(address), null, address);
  assert.ok(!of(`[x](${address}) ![y](${address})`).includes("href"), address);
}
assert.ok(of("![pixel](https://evil.example/p.png)").startsWith("<p><a href="));
const allowed = new Set("P H3 H4 H5 H6 UL OL LI PRE CODE FIGURE BUTTON BLOCKQUOTE TABLE THEAD TBODY TR TH TD A STRONG EM DEL BR HR".split(" "));
const fields = new Set(["tagName", "childNodes", "listeners", "parent", "href", "target", "rel", "className", "type", "start"]);
function check(node) {
  if (node instanceof Text) return;
  assert.ok(allowed.has(node.tagName), node.tagName);
  for (const field of Object.keys(node)) assert.ok(fields.has(field), field);
  if (node.href) assert.match(node.href, /^(https?:|mailto:)/);
  node.childNodes.forEach(check);
}

// Any text: no fault, nothing lost but marks, and no time by its square.
let state = 7;
const random = (below) => {
  state = (state * 1103515245 + 12345) % 2147483648;
  return Math.floor(state / 2147483648 * below);
};
const pieces = ["*", "**", "_", "~~", "`", "```", "\n", "\n\n", "- ", "1. ", "> ", "#", "|", "---", "[", "](", ")", "!", "https://", "<b>", "\\", " ", "word", "  "];
for (let round = 0; round < 2000; ++round) {
  const text = Array.from({ length: random(60) }, () => pieces[random(pieces.length)]).join("");
  const nodes = render(text);
  nodes.forEach(check);
  const words = (of) => of.split("word").length;
  assert.ok(words(nodes.map((node) => node.textContent).join("")) <= words(text) + text.split("https://").length, text);
}
const LONG = 60000;
for (const piece of ["*", "**a ", "*a **x ", "_", "`", "``` ", "[", "[a](", "![", "> ", "- ", "  - ", "|", "-", " ", "~~a", "https://))) ", "\\", "#", "# ", "1. ", "***a* **", "`a``", "\n> ", "\n- "]) {
  for (const end of ["", "x", "`", "](", "*"]) {
    const before = process.cpuUsage();
    render(piece.repeat(LONG / piece.length) + end);
    const milliseconds = process.cpuUsage(before).user / 1000;  // of the processor: a busy machine makes no difference
    assert.ok(milliseconds < 1500, `${JSON.stringify(piece)} and ${JSON.stringify(end)} took ${milliseconds} ms`);
  }
}
// A stream keeps what is done.
const container = new Element("div");
show(container, "one\n\ntw");
const first = container.childNodes[0];
show(container, "one\n\ntwo\n\nthree");
assert.equal(container.childNodes[0], first);
assert.equal(container.childNodes.map(html).join(""), "<p>one</p><p>two</p><p>three</p>");
console.log("ok");
