// Conversations, kept by the browser alone. A conversation is a tree: every message names the one before it, so an edited question or a
// second answer is another branch.

const DATABASE = "tetrad", STORE = "conversations", FORMAT = "tetrad-conversations-1";
const MAX_IMPORT = 64 << 20, MAX_NODES = 10000;

// crypto.randomUUID() is there only where the page came over HTTPS or from this machine.
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function transact(mode, work) {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = work(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = () => reject(transaction.error);
      transaction.onabort = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

export const all = () => transact("readonly", (store) => store.getAll());
export const save = (conversation) => transact("readwrite", (store) => store.put(conversation));
export const remove = (id) => transact("readwrite", (store) => store.delete(id));

export function newConversation() {
  return { id: newId(), title: "", changed: Date.now(), system: "", nodes: {}, leaf: null };
}

export function addNode(conversation, node) {
  node.id = newId();
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.changed = Date.now();
  if (!conversation.title && node.role === "user") conversation.title = node.content.slice(0, 80);
  return node;
}

// From the first message to this one.
export function path(conversation, leaf = conversation.leaf) {
  const nodes = [];
  for (let node = conversation.nodes[leaf]; node && nodes.length < MAX_NODES; node = conversation.nodes[node.parent]) nodes.unshift(node);
  return nodes;
}

export function siblings(conversation, node) {
  return Object.values(conversation.nodes).filter((other) => other.parent === node.parent && other.role === node.role);
}

// The newest leaf below a message.
export function leafBelow(conversation, id) {
  const children = new Map();
  for (const node of Object.values(conversation.nodes)) children.set(node.parent, node.id);  // later ones win
  let leaf = id;
  for (let steps = 0; children.has(leaf) && steps < MAX_NODES; ++steps) leaf = children.get(leaf);
  return leaf;
}

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, conversations }, null, 1);
}

const text = (value, limit) => (typeof value === "string" ? value.slice(0, limit) : "");
const CALLS = 64;
const callOf = (given) => ({ id: text(given?.id, 256), name: text(given?.name, 256), arguments: text(given?.arguments, 4 << 20) });
const count = (value) => (Number.isFinite(value) && value >= 0 ? value : undefined);

// Conversations out of a file that anybody may have written: fields that are known, of the types they have, under new names. Throws.
export function imported(json) {
  if (json.length > MAX_IMPORT) throw new Error("the file is too large");
  const file = JSON.parse(json);
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("this is no file of conversations");
  return file.conversations.slice(0, 10000).map((given) => {
    const conversation = newConversation();
    const names = new Map();
    const nodes = Object.values(given?.nodes ?? {}).slice(0, MAX_NODES);
    for (const node of nodes) if (typeof node?.id === "string") names.set(node.id, newId());
    for (const node of nodes) {
      if (!names.has(node?.id) || !["user", "assistant", "tool"].includes(node.role)) continue;
      const facts = node.facts ?? {};
      conversation.nodes[names.get(node.id)] = {
        id: names.get(node.id), parent: names.get(node.parent) ?? null, role: node.role, content: text(node.content, 4 << 20),
        reasoning: text(node.reasoning, 4 << 20), error: text(node.error, 4096),
        ...(node.role === "assistant" ? { calls: (Array.isArray(node.calls) ? node.calls : []).slice(0, CALLS).map(callOf) } : {}),
        ...(node.role === "tool" ? { call: text(node.call, 256), name: text(node.name, 256) } : {}),
        facts: Object.fromEntries(["prompt", "cached", "completion", "reasoning", "firstToken", "seconds", "thought"].map((name) => [name, count(facts[name])])),
      };
    }
    conversation.title = text(given?.title, 200);
    conversation.system = text(given?.system, 1 << 20);
    conversation.changed = count(given?.changed) ?? Date.now();
    conversation.leaf = names.get(given?.leaf) ?? null;
    return conversation;
  });
}
