// The page's tools.js without a page: what a tool field may hold, pieces of calls, JSON that is not complete yet.
// usage: node page_tools.mjs FOLDER_OF_THE_PAGE
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const scratch = mkdtempSync(join(tmpdir(), "page-"));
process.on("exit", () => rmSync(scratch, { recursive: true }));
writeFileSync(join(scratch, "tools.mjs"), readFileSync(join(process.argv[2], "tools.js"), "utf8").replace("./copy.js", "./copy.mjs"));
writeFileSync(join(scratch, "copy.mjs"), "export const copyText = async () => {};");
const { addPieces, EXAMPLE, isWhole, pretty, readTools } = await import(pathToFileURL(join(scratch, "tools.mjs")));

// --- Tools ---
const tool = (fields) => JSON.stringify([{ type: "function", function: { name: "f", ...fields } }]);
assert.deepEqual(readTools(" \n"), { tools: [], problem: "" });
assert.equal(readTools(EXAMPLE).tools[0].function.name, "get_weather");
assert.equal(readTools(tool({ description: "d", parameters: {} })).problem, "");
for (const [text, words] of [["{", "not JSON"], ["{}", "a list"], ["null", "a list"], ["[1]", "[0]:"], ["[null]", "[0]:"], ["[[]]", "[0]:"],
  ['[{"type": "custom"}]', "[0]:"], ['[{"type": "function"}]', "[0].function:"], ['[{"type": "function", "function": []}]', "[0].function:"],
  [tool({ name: "" }), "name"], [tool({ name: "a b" }), "name"], [tool({ name: 5 }), "name"], [tool({ name: "a".repeat(65) }), "name"],
  [tool({ description: 1 }), "description"], [tool({ parameters: [] }), "parameters"], [tool({ parameters: null }), "parameters"],
  [`[${tool({}).slice(1, -1)},${tool({}).slice(1, -1)}]`, "[1].function.name: f is there twice"],
  [`[${Array(129).fill(0).join()}]`, "At most 128"]]) {
  const { tools, problem } = readTools(text);
  assert.ok(problem.includes(words), `${text}: ${problem}`);
  assert.deepEqual(tools, []);
}

// --- Pieces ---
const calls = [];
addPieces(calls, [{ index: 0, id: "a", type: "function", function: { name: "f", arguments: "" } }]);
addPieces(calls, [{ index: 0, function: { arguments: "{\"x\"" } }, { index: 1, id: "b", function: { name: "g" } }]);
assert.ok(!isWhole(calls[0]) && !isWhole(calls[1]));
addPieces(calls, [{ index: 0, function: { arguments: ": 1}" } }, { index: 7, id: "z" }, { index: -1, id: "z" }, { index: "0", id: "z" }]);
assert.deepEqual(calls, [{ id: "a", name: "f", arguments: "{\"x\": 1}" }, { id: "b", name: "g", arguments: "" }]);
assert.ok(isWhole(calls[0]));
for (const text of ["", "[]", "1", "null", "{", "{}}"]) assert.ok(!isWhole({ id: "a", name: "f", arguments: text }), text);
assert.ok(!isWhole({ id: "", name: "f", arguments: "{}" }));

// --- JSON over lines ---
const values = [{}, [], { a: {} }, { a: [], b: [[1, 2], {}], c: "x" }, [[[]]], { "a\"b\\": "{[,:]}\\\"\n\u00e9" }, -1.5e3, "s", true, null,
  { deep: [{ deep: [{ deep: 1 }] }] }];
for (const value of values) {
  const text = JSON.stringify(value);
  assert.equal(pretty(text), JSON.stringify(value, null, 2));
  assert.equal(pretty(JSON.stringify(value, null, 5)), JSON.stringify(value, null, 2));
  // What came so far is shown whole, and nothing else.
  for (let end = 0; end < text.length; ++end) {
    const bare = (json) => json.replaceAll(/\s/g, "");
    assert.equal(bare(pretty(text.slice(0, end))), bare(text.slice(0, end)));
  }
}
assert.equal(pretty("}]"), "\n}\n]");
const started = performance.now();
assert.ok(pretty("[".repeat(100000)).length < 100000 * 43 && pretty("\"" + "\\".repeat(1000000)).length === 1000001);
assert.ok(performance.now() - started < 5000, "linear time");
console.log("ok   tools.js");
