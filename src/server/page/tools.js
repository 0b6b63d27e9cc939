// Tools that the user offers, the calls that the model makes of them, and the results that the user types. Nothing here is run: a call
// is shown, and goes on when somebody says what came of it.
import { copyText } from "./copy.js";

const MAX_TOOLS = 128, MAX_INDENT = 40;
export const EXAMPLE = JSON.stringify([{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city in the next days",
    parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer", minimum: 1, maximum: 7 } }, required: ["city"] },
  },
}], null, 2);

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function problemOf(tool, place) {
  if (!isObject(tool) || tool.type !== "function") return `${place}: expected {"type": "function", "function": {...}}`;
  if (!isObject(tool.function)) return `${place}.function: expected an object`;
  const { name, description, parameters } = tool.function;
  if (typeof name !== "string" || !/^[A-Za-z0-9_.-]{1,64}$/.test(name)) return `${place}.function.name: expected 1 to 64 of A-Z a-z 0-9 _ . -`;
  if (description !== undefined && typeof description !== "string") return `${place}.function.description: expected a text`;
  if (parameters !== undefined && !isObject(parameters)) return `${place}.function.parameters: expected a JSON Schema, an object`;
  return "";
}

// { tools, problem } of what the field holds: no tools where it is empty. The server looks closer, at the schemas too.
export function readTools(text) {
  if (!text.trim()) return { tools: [], problem: "" };
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return { tools: [], problem: "This is not JSON: " + error.message };
  }
  if (!Array.isArray(tools)) return { tools: [], problem: "Expected a list: [{\"type\": \"function\", ...}]" };
  if (tools.length > MAX_TOOLS) return { tools: [], problem: `At most ${MAX_TOOLS} tools` };
  const names = new Set();
  for (const [i, tool] of tools.entries()) {
    const problem = problemOf(tool, `[${i}]`);
    if (problem) return { tools: [], problem };
    if (names.has(tool.function.name)) return { tools: [], problem: `[${i}].function.name: ${tool.function.name} is there twice` };
    names.add(tool.function.name);
  }
  return { tools, problem: "" };
}

// Puts the pieces of a stream's chunk to the calls that they belong to.
export function addPieces(calls, pieces) {
  for (const piece of pieces) {
    const index = piece.index ?? 0;
    if (!Number.isInteger(index) || index < 0 || index > calls.length) continue;
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name ||= piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
}

// A call whose arguments broke off cannot be answered, nor sent back.
export function isWhole(call) {
  try {
    return call.id !== "" && isObject(JSON.parse(call.arguments));
  } catch {
    return false;
  }
}

// JSON over several lines, also of a text that is not complete yet.
export function pretty(json) {
  let out = "", depth = 0;
  const line = () => "\n" + " ".repeat(Math.min(2 * depth, MAX_INDENT));
  for (let i = 0; i < json.length; ++i) {
    const c = json[i];
    if (c === "\"") {
      let end = i + 1;
      while (end < json.length && json[end] !== "\"") end += json[end] === "\\" ? 2 : 1;
      out += json.slice(i, end + 1);
      i = end;
    } else if (c === "{" || c === "[") {
      const inside = json.slice(i + 1, i + 64).trimStart()[0];
      out += c;
      if (inside === "}" || inside === "]") i = json.indexOf(inside, i), out += inside;
      else ++depth, out += line();
    } else if (c === "}" || c === "]") {
      depth = Math.max(0, depth - 1);
      out += line() + c;
    } else if (c === ",") {
      out += c + line();
    } else if (c === ":") {
      out += ": ";
    } else if (!" \t\r\n".includes(c)) {
      out += c;
    }
  }
  return out;
}

function element(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function button(text, title, onClick) {
  const node = element("button", "", text);
  node.type = "button";
  node.title = title;
  node.addEventListener("click", onClick);
  return node;
}

// Of a message: its calls, and below them, while they wait for it, fields for their results.
export class CallsView {
  constructor() {
    this.list = element("div", "calls");
    this.answers = element("form", "results");
    this.answers.hidden = true;
    this.node = element("div", "", this.list, this.answers);
    this.views = [];
  }

  show(calls, running) {
    while (this.views.length < calls.length) {
      const state = element("span", "state"), name = element("b"), id = element("code", "id"), text = element("code"), shown = "";
      const call = calls[this.views.length];
      const copy = button("Copy", "Copy the arguments as they were written", () => copyText(call.arguments));
      const node = element("section", "call", element("header", "", element("span", "", "Call of "), name, id, state, copy), element("pre", "", text));
      this.views.push({ node, name, id, state, text, shown });
      this.list.append(node);
    }
    for (const [i, call] of calls.entries()) {
      const view = this.views[i];
      view.name.textContent = call.name;
      view.id.textContent = call.id;
      view.node.setAttribute("aria-label", "Call of " + call.name);
      view.state.textContent = isWhole(call) ? "" : running ? "comes" : "broke off";
      if (view.shown === call.arguments) continue;
      view.shown = call.arguments;
      view.text.textContent = pretty(call.arguments);
    }
  }

  // Fields for the results of these calls; send is given a text for each. Those that are there already keep what was typed.
  ask(calls, send) {
    if (!this.answers.hidden || !calls.length) return;
    const areas = calls.map((call) => {
      const area = element("textarea");
      area.rows = 2;
      area.placeholder = "What came of it, as text or JSON. Ctrl+Enter sends.";
      area.setAttribute("aria-label", `Result of ${call.name}, ${call.id}`);
      return area;
    });
    const done = element("button", "", calls.length === 1 ? "Send the result" : "Send the results");
    done.title = "Ctrl+Enter";
    this.answers.replaceChildren(...areas.map((area, i) => element("label", "", `Result of ${calls[i].name}`, area)), done);
    const submit = (event) => {
      event.preventDefault();
      send(areas.map((area) => area.value));
    };
    this.answers.addEventListener("submit", submit);
    this.answers.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) submit(event);
    });
    this.answers.hidden = false;
  }

  focus() {
    this.answers.querySelector("textarea")?.focus();
  }
}
