// Small words for the document and for what every part of the page asks of the server. Whatever comes from the server or
// from storage is text, never markup: elements are made by name and filled with textContent.

const $ = (id) => document.getElementById(id);

// make("button", parent, "Copy", {className: "plain", onclick: f}): an element at the end of `parent`, which may be null.
function make(tag, parent, text, properties) {
  const e = document.createElement(tag);
  if (text !== undefined && text !== "") e.textContent = text;
  if (properties) Object.assign(e, properties);
  if (parent) parent.append(e);
  return e;
}

// A button of one sign, named for those who do not see it.
function sign(parent, text, name, onclick) {
  const b = make("button", parent, text, { type: "button", className: "sign", title: name, onclick });
  b.setAttribute("aria-label", name);
  return b;
}

// What is kept for this tab alone (keys), and what is kept for the browser (settings).
const remembered = {
  get(key, otherwise = "") { try { return sessionStorage.getItem("oar-" + key) ?? otherwise; } catch { return otherwise; } },
  set(key, value) { try { sessionStorage.setItem("oar-" + key, value); } catch { /* a browser that keeps nothing */ } },
};
const preferred = {
  get(key, otherwise) { try { return JSON.parse(localStorage.getItem("oar-" + key)) ?? otherwise; } catch { return otherwise; } },
  set(key, value) { try { localStorage.setItem("oar-" + key, JSON.stringify(value)); } catch { /* the same */ } },
};

// Addresses are relative, so that a proxy may add a prefix.
function headers(key, more) { return { ...(key ? { Authorization: "Bearer " + key } : {}), ...more }; }

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The words of an answer that is no success: {"error": {"message"}} of OpenAI's API, {"error": "..."} of Triton's.
async function refusal(answer) {
  let message = "";
  try {
    const { error } = await answer.json();
    message = typeof error === "string" ? error : error.message;
  } catch { /* no JSON: the status says it */ }
  return new Refused(message || "the server answered " + answer.status + " " + answer.statusText, answer.status);
}

async function get(path) {
  const answer = await fetch(path, { headers: headers(remembered.get("key")), cache: "no-store", signal: AbortSignal.timeout(5000) });
  $("login").hidden = answer.status !== 401;
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

const post = (path, body, key, signal) =>
  fetch(path, { method: "POST", body: JSON.stringify(body), signal, headers: headers(key, { "Content-Type": "application/json" }) });

// Copies text and says so on the button for a moment. Without HTTPS a browser has no clipboard object: then by selection.
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", document.body, "", { value: text, className: "away" });
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "\u2713";
  setTimeout(() => { button.textContent = before; }, 1200);
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", null, "", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
