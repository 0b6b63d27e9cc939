// Requests to the server that this page came from.

const KEY = "tetrad-api-key";
export const apiKey = () => sessionStorage.getItem(KEY) ?? "";
export const setApiKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

function headers(more = {}) {
  return apiKey() ? { ...more, Authorization: "Bearer " + apiKey() } : more;
}

async function failure(response) {
  const body = await response.text();
  let message = body.slice(0, 2000);
  try {
    message = JSON.parse(body).error.message;
  } catch {
    // not the server's own words
  }
  return new Error(`${response.status}: ${message}`);
}

export async function stats() {
  const response = await fetch("/v1/stats", { headers: headers(), cache: "no-store" });
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Events of a stream: the data of each, until [DONE].
export async function* events(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += decoder.decode(value ?? new Uint8Array(), { stream: !done });
    const pieces = rest.split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      const data = piece.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
    if (done) throw new Error("the connection ended before the answer did");
  }
}

// Calls on_chunk for every chunk of a chat completion. Throws what the server says went wrong, and AbortError after signal.
export async function chat(body, signal, onChunk) {
  const response = await fetch("/v1/chat/completions",
    { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal });
  if (!response.ok) throw await failure(response);
  for await (const chunk of events(response.body.getReader())) {
    if (chunk.error) throw new Error(chunk.error.message);
    onChunk(chunk);
  }
}

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

// Commands that ask the same. The key is not in them: it is read from the environment.
export function asCurl(origin, body, hasKey) {
  return [`curl -N ${quoted(origin + "/v1/chat/completions")}`, "-H 'Content-Type: application/json'",
    ...(hasKey ? ["-H \"Authorization: Bearer $TETRAD_API_KEY\""] : []), `-d ${quoted(JSON.stringify(body))}`].join(" \\\n  ");
}

// JSON is Python but for three words, which are replaced outside of strings.
function pythonLiteral(value, indent = 4) {
  return JSON.stringify(value, null, indent).replace(/"(?:[^"\\]|\\.)*"|\btrue\b|\bfalse\b|\bnull\b/g,
    (word) => ({ true: "True", false: "False", null: "None" })[word] ?? word);
}

export function asPython(origin, body, hasKey) {
  const { model, messages, stream, stream_options: _, ...rest } = body;
  const own = ["temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "seed", "tools", "tool_choice"];
  const known = Object.entries(rest).filter(([name]) => own.includes(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => !own.includes(name)));
  return ["import os", "from openai import OpenAI", "",
    `client = OpenAI(base_url=${JSON.stringify(origin + "/v1")}, api_key=${hasKey ? "os.environ[\"TETRAD_API_KEY\"]" : "\"none\""})`,
    "stream = client.chat.completions.create(", `    model=${JSON.stringify(model)},`, `    messages=${pythonLiteral(messages)},`,
    ...known.map(([name, value]) => `    ${name}=${pythonLiteral(value)},`),
    ...(Object.keys(extra).length ? [`    extra_body=${pythonLiteral(extra)},`] : []), "    stream=True,", ")",
    "for chunk in stream:", "    if chunk.choices:", "        print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)", ""].join("\n");
}
