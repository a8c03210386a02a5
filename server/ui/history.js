// Conversations, kept in this browser (IndexedDB) and nowhere else. One is a tree of messages: editing a question or asking
// again adds a sibling, and nothing is lost. What is shown is the way from the root to the chosen leaf.
//
//   conversation {id, title, updated, leaf, next}      message {conversation, id, parent, role, content, ...}
//
// `id` of a message counts within its conversation; `parent` 0 is the root.

class Store {
  // A store without a database (a browser that forbids it) keeps all for as long as the page is open.
  static async open() {
    const store = new Store();
    store.db = await new Promise((done) => {
      let request;
      try { request = indexedDB.open("oar", 1); } catch { return done(null); }
      request.onupgradeneeded = () => {
        request.result.createObjectStore("conversations", { keyPath: "id" });
        request.result.createObjectStore("messages", { keyPath: ["conversation", "id"] });
      };
      request.onsuccess = () => done(request.result);
      request.onerror = () => done(null);
    });
    return store;
  }
  // Runs f(conversations, messages) in one transaction; what f's request found.
  run(mode, f) {
    if (!this.db) return Promise.resolve([]);
    return new Promise((done, fail) => {
      const t = this.db.transaction(["conversations", "messages"], mode);
      const request = f(t.objectStore("conversations"), t.objectStore("messages"));
      t.oncomplete = () => done(request?.result);
      t.onabort = t.onerror = () => fail(t.error);
    });
  }
  all() { return this.run("readonly", (c) => c.getAll()); }
  messages(id) { return this.run("readonly", (_, m) => m.getAll(this.range(id))); }
  range(id) { return IDBKeyRange.bound([id, 0], [id, Infinity]); }
  put(conversation, messages) {
    return this.run("readwrite", (c, m) => {
      c.put(conversation);
      for (const message of messages) m.put(message);
    });
  }
  remove(id) {
    return this.run("readwrite", (c, m) => {
      c.delete(id);
      m.delete(this.range(id));
    });
  }
}

class Conversation {
  constructor(record, messages) {
    this.record = record;
    this.messages = new Map(messages.map((m) => [m.id, m]));
    this.children = new Map();
    for (const m of messages) this.adopt(m);
  }
  static fresh() {
    return new Conversation({ id: crypto.randomUUID?.() ?? Date.now() + "-" + Math.random(), title: "", updated: Date.now(), leaf: 0, next: 1 }, []);
  }
  adopt(m) { this.children.set(m.parent, [...(this.children.get(m.parent) || []), m.id]); }
  add(parent, message) {
    const m = { ...message, conversation: this.record.id, id: this.record.next++, parent };
    this.messages.set(m.id, m);
    this.adopt(m);
    this.record.leaf = m.id;
    this.record.updated = Date.now();
    if (!this.record.title && m.role === "user") this.record.title = m.content.trim().replace(/\s+/g, " ").slice(0, 60);
    return m;
  }
  siblings(m) { return this.children.get(m.parent); }
  // Shows the sibling `by` places further, and below it what was written last.
  turn(m, by) {
    const all = this.siblings(m);
    this.record.leaf = all[Math.min(all.length - 1, Math.max(0, all.indexOf(m.id) + by))];
    for (let below; (below = this.children.get(this.record.leaf)); ) this.record.leaf = below.at(-1);
  }
  // From the first message to `leaf`.
  path(leaf = this.record.leaf) {
    const out = [];
    for (let m = this.messages.get(leaf); m; m = this.messages.get(m.parent)) out.push(m);
    return out.reverse();
  }
  // What is shown, for those who read: Markdown.
  markdown() {
    const who = { user: "You", assistant: "Model", tool: "Result of a tool" };
    return "# " + this.record.title + "\n\n" + this.path().map((m) => "## " + who[m.role] + "\n\n" + (m.content || "") +
      (m.calls || []).map((c) => "\n\n```json\n" + JSON.stringify(c, null, 2) + "\n```").join("") + "\n").join("\n");
  }
}

// ---- The list beside the chat ----

const store = Store.open();  // a promise: somebody may ask before the database is there
let current = Conversation.fresh(), listed = [];

async function openHistory() {
  const kept = await (await store).all();
  listed = [...kept.filter((r) => !listed.some((l) => l.id === r.id)), ...listed];
  listHistory();
}

function listHistory() {
  const list = $("history"), wanted = $("search").value.trim().toLowerCase();
  list.replaceChildren();
  listed.sort((a, b) => b.updated - a.updated);
  let day = "";
  for (const record of listed) {
    if (wanted && !record.title.toLowerCase().includes(wanted)) continue;
    const of = dayOf(record.updated);
    if (of !== day) make("li", list, (day = of), { className: "day" });
    const li = make("li", list, "", { className: record.id === current.record.id ? "here" : "" });
    const open = make("button", li, record.title || "untitled", { type: "button", onclick: () => openConversation(record) });
    if (li.className) open.setAttribute("aria-current", "true");
    sign(li, "\u270e", "Rename", () => {
      const title = prompt("Name of this conversation", record.title);
      if (title !== null) {
        record.title = title.trim();
        keep(record.id === current.record.id ? current : new Conversation(record, []), []);
      }
    });
    sign(li, "\u00d7", "Delete", async () => {
      if (!confirm("Delete \u201c" + record.title + "\u201d? It is kept in this browser alone.")) return;
      await (await store).remove(record.id);
      listed = listed.filter((r) => r !== record);
      if (record.id === current.record.id) newConversation();
      listHistory();
    });
  }
}

function dayOf(time) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 864e5 + 0.5);
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days < 7 ? "This week" : days < 31 ? "This month" : "Earlier";
}

async function keep(conversation, messages) {
  if (!listed.includes(conversation.record)) listed.push(conversation.record);
  listHistory();
  try {
    await (await store).put(conversation.record, messages);
  } catch (e) {
    say("This browser keeps nothing more: " + e.message);
  }
}

function newConversation() {
  if (running) return;
  current = Conversation.fresh();
  showConversation();
  listHistory();
  closeDrawers();
  $("question").focus();
}

async function openConversation(record) {
  if (running) return;
  current = new Conversation(record, await (await store).messages(record.id));
  showConversation();
  listHistory();
  closeDrawers();
}

// ---- Out of the browser and in ----

async function exportHistory() {
  const all = [];
  for (const record of listed) all.push({ ...record, messages: await (await store).messages(record.id) });
  save("oar-conversations.json", "application/json", JSON.stringify({ oar: 1, conversations: all }, null, 1));
}

async function importHistory(file) {
  try {
    const { oar, conversations } = JSON.parse(await file.text());
    if (oar !== 1 || !Array.isArray(conversations)) throw new Error("it is no export of this page");
    for (const { id, title, updated, leaf, next, messages } of conversations) {
      if (typeof id !== "string" || !Array.isArray(messages) || ![updated, leaf, next].every(Number.isFinite))
        throw new Error("a conversation lacks id, updated, leaf, next or messages");
      for (const m of messages) m.conversation = id;
      await (await store).put({ id, title: String(title), updated, leaf, next }, messages);
    }
    await openHistory();
  } catch (e) {
    say(file.name + " was not read: " + e.message);
  }
}
