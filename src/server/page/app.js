// The page: a conversation with the model that serves it, and the server's dashboard. No library, and no request but to this server.
import * as api from "./api.js";
import { copyText } from "./copy.js";
import { Dashboard } from "./dashboard.js";
import { show } from "./markdown.js";
import * as store from "./store.js";
import { addPieces, CallsView, EXAMPLE, isWhole, readTools } from "./tools.js";

const byId = (id) => document.getElementById(id);
const make = (name, className, ...children) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
};
const button = (text, title, onClick) => {
  const node = make("button", "", text);
  node.type = "button";
  node.title = title;
  node.addEventListener("click", onClick);
  return node;
};
const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });

// Name of the field, its label, and the step of its input.
const SAMPLING = [["temperature", "Temperature", 0.05], ["top_p", "Top p", 0.01], ["top_k", "Top k", 1], ["min_p", "Min p", 0.01],
  ["repetition_penalty", "Repetition", 0.05], ["presence_penalty", "Presence", 0.05], ["frequency_penalty", "Frequency", 0.05],
  ["max_tokens", "Max tokens", 1], ["seed", "Seed", 1]];
const SETTINGS = "tetrad-settings", THEME = "tetrad-theme";

let server = null;         // the newest /v1/stats
let conversation = store.newConversation();
let running = null;        // { abort, node } while an answer comes
const views = new Map();   // nodes of the messages that are shown, by message

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

// --- What is asked ---

function settings() {
  const chosen = {};
  for (const [name] of SAMPLING) {
    const text = byId("sampling-" + name).value.trim();
    if (text !== "" && Number.isFinite(Number(text))) chosen[name] = Number(text);
  }
  if (byId("effort").value) chosen.reasoning_effort = byId("effort").value;
  if (byId("budget").value.trim() !== "") chosen.thinking_token_budget = Number(byId("budget").value);
  const { tools } = readTools(byId("tools").value);
  if (tools.length) {
    chosen.tools = tools;
    if (byId("tool-choice").value) chosen.tool_choice = byId("tool-choice").value;
  }
  return chosen;
}

function messageOf(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, content: node.content };
  const message = { role: node.role, content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  const calls = (node.calls ?? []).filter(isWhole);
  if (calls.length) message.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return message;
}

// The request for an answer after this message.
function requestFor(leaf) {
  const messages = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  messages.push(...store.path(conversation, leaf).map(messageOf));
  // What equals the server's own default is left to the server.
  const chosen = settings();
  for (const [name, value] of Object.entries(chosen)) if (server?.defaults?.[name] === value) delete chosen[name];
  return { model: server?.model ?? "", messages, ...chosen, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
}

async function answer(parent) {
  if (running) return;
  notice("");
  const body = requestFor(parent);
  const node = store.addNode(conversation, { parent, role: "assistant", content: "", reasoning: "", calls: [], error: "", facts: {} });
  const abort = new AbortController();
  running = { abort, node, started: performance.now() };
  busy(true);
  drawMessages();
  keep();
  const clock = setInterval(() => update(node), 100);
  try {
    await api.chat(body, abort.signal, (chunk) => take(node, chunk));
  } catch (error) {
    node.error = error.name === "AbortError" ? "stopped" : error.message;
  }
  clearInterval(clock);
  const now = performance.now();
  node.facts.seconds = (now - running.started) / 1000;
  if (running.thinking) node.facts.thought = (now - running.thinking) / 1000;
  running = null;
  busy(false);
  update(node);
  if (node.calls.length && (document.activeElement === byId("prompt") || document.activeElement === document.body)) views.get(node.id)?.calls.focus();
  await keep();
}

function take(node, chunk) {
  const now = performance.now();
  const facts = node.facts;
  const delta = chunk.choices[0]?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? "", content = delta.content ?? "", pieces = delta.tool_calls ?? [];
  const said = content || pieces.length;
  if ((thought || said) && facts.firstToken === undefined) facts.firstToken = (now - running.started) / 1000;
  if (thought) running.thinking ??= now;
  if (said && running.thinking) {
    facts.thought = (now - running.thinking) / 1000;
    running.thinking = null;
  }
  node.reasoning += thought;
  node.content += content;
  addPieces(node.calls, pieces);
  if (chunk.usage) {
    facts.prompt = chunk.usage.prompt_tokens;
    facts.completion = chunk.usage.completion_tokens;
    facts.cached = chunk.usage.prompt_tokens_details?.cached_tokens;
    facts.reasoning = chunk.usage.completion_tokens_details?.reasoning_tokens;
  }
  if (chunk.choices[0]?.finish_reason === "length") node.error = "cut off: the limit of tokens was reached";
}

// What a person wrote, as a message after another: a question, or with more the result of a call.
function addWritten(parent, role, content, more = {}) {
  return store.addNode(conversation, { parent, role, content, reasoning: "", error: "", facts: {}, ...more });
}

// A fault in the tools must not lead to a request without them.
function mayAsk() {
  const { problem } = readTools(byId("tools").value);
  notice(problem && "Tools: " + problem);
  return !running && !problem;
}

function send() {
  const text = byId("prompt").value;
  if (!text.trim() || !mayAsk()) return;
  byId("prompt").value = "";
  answer(addWritten(conversation.leaf, "user", text).id);
}

// A message for each call of an answer, in their order, then the next answer.
function sendResults(node, calls, texts) {
  if (!mayAsk()) return;
  let parent = node.id;
  for (const [i, call] of calls.entries()) parent = addWritten(parent, "tool", texts[i], { call: call.id, name: call.name }).id;
  answer(parent);
}

function stop() {
  running?.abort.abort();
}

function busy(is) {
  byId("send").hidden = is;
  byId("stop").hidden = !is;
}

// --- What is shown ---

function facts(node) {
  const f = node.facts, texts = [];
  const decode = f.seconds - f.firstToken;
  if (f.completion > 1 && decode > 0) texts.push(`${number((f.completion - 1) / decode, 1)} tok/s`);
  if (f.completion !== undefined) texts.push(`${number(f.completion)} tokens`);
  if (f.firstToken !== undefined) texts.push(`first after ${number(f.firstToken, 2)} s`);
  if (f.prompt !== undefined) texts.push(`prompt ${number(f.prompt)}` + (f.cached !== undefined ? `, ${number(f.cached)} cached` : ""));
  return texts.map((text) => make("span", "", text));
}

function branches(node) {
  const all = store.siblings(conversation, node);
  if (all.length < 2) return [];
  const at = all.indexOf(node);
  const go = (step) => () => {
    if (running) return;
    conversation.leaf = store.leafBelow(conversation, all[(at + step + all.length) % all.length].id);
    drawMessages();
    keep();
  };
  return [button("<", "Branch before", go(-1)), make("span", "", `${at + 1}/${all.length}`), button(">", "Branch after", go(1))];
}

function edit(node) {
  if (running) return;
  const view = views.get(node.id);
  const area = make("textarea");
  area.value = node.content;
  area.rows = Math.min(12, node.content.split("\n").length + 1);
  area.setAttribute("aria-label", node.role === "tool" ? "Edited result" : "Edited question");
  // The results of the other calls of one answer stay what they were.
  const after = store.path(conversation).filter((other, i, shown) => i > shown.indexOf(node));
  const more = [];
  while (after[more.length]?.role === "tool") more.push(after[more.length]);
  const done = button("Send", "Ask this instead", () => {
    if (!mayAsk()) return;
    let { id } = addWritten(node.parent, node.role, area.value, { call: node.call, name: node.name });
    if (node.role === "tool") for (const other of more) id = addWritten(id, "tool", other.content, { call: other.call, name: other.name }).id;
    answer(id);
  });
  view.body.replaceChildren(area, done, button("Cancel", "Leave it as it was", drawMessages));
  area.focus();
}

function viewOf(node) {
  const body = make("div", "body"), line = make("div", "facts"), failed = make("div", "failed");
  const view = { node: make("article", "message " + node.role, body, failed, line), body, line, failed };
  if (node.role === "assistant") {
    body.classList.add("markdown");
    view.summary = make("summary");
    view.thought = make("div");
    view.thinking = make("details", "thinking", view.summary, view.thought);
    view.node.prepend(view.thinking);
    view.calls = new CallsView();
    body.after(view.calls.node);
  } else if (node.role === "tool") {
    view.node.prepend(make("header", "", "Result of ", make("b", "", node.name), make("code", "id", node.call)));
  }
  return view;
}

// Brings what is shown of a message up to date.
function update(node) {
  const view = views.get(node.id);
  if (!view) return;
  const log = byId("messages");
  const following = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  const current = running?.node === node;
  if (node.role !== "assistant") {
    view.body.textContent = node.content;
  } else {
    view.thinking.hidden = !node.reasoning;
    const since = current && running.thinking ? (performance.now() - running.thinking) / 1000 : node.facts.thought;
    const tokens = node.facts.reasoning === undefined ? "" : `, ${number(node.facts.reasoning)} tokens`;
    view.summary.textContent = `${current && running.thinking ? "Thinking" : "Thought"}` + (since === undefined ? "" : ` for ${number(since, 1)} s`) + tokens;
    if (view.thought.textContent !== node.reasoning) view.thought.textContent = node.reasoning;
    show(view.body, node.content);
    const calls = node.calls ?? [], whole = calls.filter(isWhole);
    view.calls.show(calls, current);
    if (!current && node.id === conversation.leaf) view.calls.ask(whole, (texts) => sendResults(node, whole, texts));
  }
  view.failed.textContent = current ? "" : node.error;
  if (current) {
    view.line.replaceChildren(...facts({ facts: { ...node.facts, seconds: (performance.now() - running.started) / 1000 } }));
  } else {
    const tools = node.role === "user" ? [button("Edit", "Alt+E: ask it another way, on a branch of its own", () => edit(node))]
      : node.role === "tool" ? [button("Edit", "Another result, on a branch of its own", () => edit(node))]
      : [button("Again", "Alt+R: another answer, on a branch of its own", () => mayAsk() && answer(node.parent)),
        button("Copy", "Copy the answer as it was written", () => copyText(node.content))];
    view.line.replaceChildren(...branches(node), ...facts(node), ...tools);
  }
  gauge(node);
  if (following) log.scrollTop = log.scrollHeight;
}

function drawMessages() {
  views.clear();
  const nodes = store.path(conversation);
  for (const node of nodes) views.set(node.id, viewOf(node));
  byId("messages").replaceChildren(...nodes.map((node) => views.get(node.id).node));
  gauge(null);
  nodes.forEach(update);
  byId("messages").scrollTop = byId("messages").scrollHeight;
}

function gauge(node) {
  const context = server?.max_model_len ?? 0;
  const used = node?.facts?.prompt === undefined ? 0 : node.facts.prompt + (node.facts.completion ?? 0);
  if (node && node.role !== "assistant") return;
  byId("gauge-bar").style.width = context ? `${Math.min(100, 100 * used / context)}%` : "0";
  byId("gauge-text").textContent = context ? `${number(used)} of ${number(context)} tokens of context` : "";
}

// --- What is kept ---

async function keep() {
  try {
    if (conversation.leaf !== null) await store.save(conversation);
    await drawHistory();
  } catch (error) {
    notice("This conversation could not be kept: " + error.message);
  }
}

async function drawHistory() {
  const wanted = byId("search").value.toLowerCase();
  const all = (await store.all()).filter((other) => other.title.toLowerCase().includes(wanted)).sort((a, b) => b.changed - a.changed);
  byId("history").replaceChildren(...all.map((other) => {
    const open = button(other.title || "(no title)", new Date(other.changed).toLocaleString(), () => choose(other));
    const gone = button("x", "Delete", async () => {
      if (!confirm(`Delete "${other.title}"?`)) return;
      await store.remove(other.id);
      if (other.id === conversation.id) choose(store.newConversation());
      await drawHistory();
    });
    gone.setAttribute("aria-label", "Delete " + other.title);
    const item = make("li", "", open, gone);
    if (other.id === conversation.id) item.setAttribute("aria-current", "true");
    return item;
  }));
}

function choose(other) {
  if (running) stop();
  conversation = other;
  byId("system").value = conversation.system;
  notice("");
  drawMessages();
  drawHistory().catch((error) => notice(error.message));
  byId("prompt").focus();
}

async function exportAll() {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([store.exported(await store.all())], { type: "application/json" }));
  link.download = "tetrad-conversations.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function importFile(file) {
  try {
    for (const other of store.imported(await file.text())) await store.save(other);
    await drawHistory();
  } catch (error) {
    notice("Not imported: " + error.message);
  }
}

// --- The panel ---

function buildSampling() {
  for (const [name, label, step] of SAMPLING) {
    const input = make("input");
    input.type = "number";
    input.step = step;
    input.id = "sampling-" + name;
    byId("sampling").append(make("label", "", label, input));
  }
}

// Fields that the user has not set show what the server does.
let filled = false;
function fillSampling() {
  if (filled || !server?.defaults) return;
  filled = true;
  const stored = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
  for (const [name] of SAMPLING) {
    const known = server.defaults[name];
    byId("sampling-" + name).value = stored[name] ?? (name === "max_tokens" && known === 0 ? "" : known ?? "");
    byId("sampling-" + name).placeholder = name === "seed" ? "random" : name === "max_tokens" ? "what fits" : String(known ?? "");
  }
  byId("effort").value = stored.reasoning_effort ?? "";
  byId("budget").value = stored.thinking_token_budget ?? "";
  byId("tools").value = stored.tools ?? "";
  byId("tool-choice").value = stored.tool_choice ?? "";
  checkTools();
}

// The tools as they were written, right or not.
function keepSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify({ ...settings(), tools: byId("tools").value, tool_choice: byId("tool-choice").value }));
}

function checkTools() {
  const { tools, problem } = readTools(byId("tools").value);
  byId("tools").setAttribute("aria-invalid", String(problem !== ""));
  byId("tools-problem").textContent = problem;
  byId("tools-count").textContent = tools.length ? `${tools.length} offered: ${tools.map((tool) => tool.function.name).join(", ")}` : "";
}

// All but the tools, which nobody wants to type again.
function resetSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify({ tools: byId("tools").value, tool_choice: byId("tool-choice").value }));
  filled = false;
  fillSampling();
}

async function copyCommand(kind) {
  const body = requestFor(conversation.leaf);
  if (!body.messages.some((message) => message.role === "user")) body.messages.push({ role: "user", content: byId("prompt").value || "Hello" });
  delete body.stream_options;
  await copyText(kind(location.origin, body, api.apiKey() !== ""));
}

function theme(next) {
  if (next) localStorage.setItem(THEME, next);
  const chosen = localStorage.getItem(THEME) ?? "system";
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  byId("theme").textContent = "Theme: " + chosen;
}
const nextTheme = () => theme({ system: "light", light: "dark", dark: "system" }[localStorage.getItem(THEME) ?? "system"]);

const dashboard = new Dashboard();
function view(name) {
  for (const each of ["chat", "board"]) {
    byId("view-" + each).hidden = each !== name;
    byId("tab-" + each).setAttribute("aria-selected", String(each === name));
  }
  dashboard.start(name === "board" ? 1000 : 5000);
}

dashboard.onStats = (stats, error) => {
  byId("phase").textContent = error ? error.message
    : stats.phase === "loading" ? `loading, ${number(100 * stats.progress)} %` : stats.phase === "draining" ? "stopping" : "";
  if (!stats) return;
  const first = !server?.model && stats.model;
  server = stats;
  if (!first) return;
  byId("model").textContent = stats.model;
  document.title = stats.model;
  fillSampling();
  gauge(store.path(conversation).at(-1) ?? null);
};

function press(event) {
  if (event.key === "Escape") return stop();
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const last = (role) => store.path(conversation).filter((node) => node.role === role).at(-1);
  const actions = {
    KeyN: () => choose(store.newConversation()), Digit1: () => view("chat"), Digit2: () => view("board"), KeyT: nextTheme,
    KeyR: () => last("assistant") && mayAsk() && answer(last("assistant").parent), KeyE: () => last("user") && edit(last("user")),
  };
  if (!actions[event.code]) return;
  event.preventDefault();
  actions[event.code]();
}

buildSampling();
theme();
byId("api-key").value = api.apiKey();
byId("api-key").addEventListener("change", () => {
  api.setApiKey(byId("api-key").value.trim());
  dashboard.start(5000);
});
byId("system").addEventListener("input", () => { conversation.system = byId("system").value; });
byId("settings").addEventListener("change", keepSettings);
byId("tools").addEventListener("input", checkTools);
byId("tools-example").addEventListener("click", () => {
  byId("tools").value = EXAMPLE;
  checkTools();
  keepSettings();
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", stop);
byId("new-chat").addEventListener("click", () => choose(store.newConversation()));
byId("search").addEventListener("input", () => drawHistory());
byId("export").addEventListener("click", exportAll);
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", (event) => importFile(event.target.files[0]));
byId("reset").addEventListener("click", resetSettings);
byId("copy-curl").addEventListener("click", () => copyCommand(api.asCurl));
byId("copy-python").addEventListener("click", () => copyCommand(api.asPython));
byId("theme").addEventListener("click", nextTheme);
byId("tab-chat").addEventListener("click", () => view("chat"));
byId("tab-board").addEventListener("click", () => view("board"));
document.addEventListener("keydown", press);
drawMessages();
drawHistory().catch(() => notice("This browser keeps no conversations here."));
view("chat");
byId("prompt").focus();
