// The chat: /v1/chat/completions, streamed. Messages far from what is seen are empty boxes until they come near, so that a
// conversation of ten thousand opens at once.

let running = null;  // the AbortController of the answer that is being written
const drawn = new Map();  // message id -> its article

function say(message) {
  $("notice").textContent = message;
  $("notice").hidden = !message;
}

const near = new IntersectionObserver((entries) => {
  for (const e of entries) if (e.isIntersecting) drawBody(e.target);
}, { root: $("talk"), rootMargin: "1500px 0px" });
// The observer tells of a jump a frame or more later. What is seen is filled at once, and some more: filled, messages are lower.
$("talk").addEventListener("scroll", () => {
  const { x, y, width, height } = $("talk").getBoundingClientRect();
  let e = null;
  for (let at = y + 1; !e && at < y + height; at += 40) e = document.elementFromPoint(x + width / 2, at)?.closest("#talk > .later");
  for (let k = 0; e && k < 30; ++k, e = e.nextElementSibling) drawBody(e);
}, { passive: true });

function showConversation() {
  near.disconnect();
  drawn.clear();
  $("talk").replaceChildren();
  const path = current.path();
  for (const m of path) $("talk").append(article(m));
  for (const m of path.slice(-20)) drawBody(drawn.get(m.id));
  $("talk").scrollTop = $("talk").scrollHeight;
  answerCalls();
}

// Redraws from message `m` on; what stands above stays.
function showFrom(m) {
  const path = current.path(), from = path.findIndex((p) => p.id === m);
  leaveOnly(new Set(path.slice(0, Math.max(0, from)).map((p) => p.id)));
  for (const p of path.slice(Math.max(0, from))) $("talk").append(article(p));
  answerCalls();
}

function leaveOnly(ids) {
  for (const [id, e] of drawn) {
    if (ids.has(id)) continue;
    e.remove();
    drawn.delete(id);
  }
}

function article(m) {
  const e = make("article", null, "", { className: m.role + " later" });
  e.message = m;
  drawn.set(m.id, e);
  near.observe(e);
  return e;
}

// Fills an article that came near.
function drawBody(e) {
  near.unobserve(e);
  if (!e.classList.replace("later", "here")) return;
  const m = e.message;
  if (m.reasoning || m.role === "assistant") {
    e.thoughts = make("details", e, "", { hidden: !m.reasoning });
    make("summary", e.thoughts, "Reasoning");
    make("p", e.thoughts, m.reasoning);
  }
  if (m.role === "tool") make("b", e, "Result of " + m.name);
  e.text = make("div", e, "", { className: "text" });
  if (m.role === "assistant") {
    e.view = new MarkdownView(e.text);
    e.view.set(m.content);
  } else {
    e.text.textContent = m.content;
  }
  e.calls = make("div", e);
  for (const c of m.calls || []) drawCall(e.calls, c);
  if (m.error) make("p", e, m.error, { className: "error" });
  const foot = make("footer", e);
  e.note = make("small", foot, m.note || "");
  const siblings = current.siblings(m), at = siblings.indexOf(m.id);
  if (siblings.length > 1) {
    sign(foot, "\u2039", "Version before", () => turn(m, -1)).disabled = at === 0;
    make("small", foot, at + 1 + "/" + siblings.length);
    sign(foot, "\u203a", "Next version", () => turn(m, 1)).disabled = at + 1 === siblings.length;
  }
  sign(foot, "Copy", "Copy", (event) => copy(m.content, event.currentTarget));
  if (m.role === "user") sign(foot, "\u270e", "Edit", () => edit(m, e));
  if (m.role === "assistant") sign(foot, "\u21bb", "Answer again", () => again(m));
}

function turn(m, by) {
  if (running) return;
  const parent = m.parent;
  current.turn(m, by);
  keep(current, []);
  showFrom(current.path().find((p) => p.parent === parent).id);
}

// ---- Tools: calls of the model, and the results that a person or a program gives ----

function drawCall(parent, call) {
  const box = make("figure", parent, "", { className: "code call" });
  make("figcaption", box, "calls " + call.function.name);
  let text = call.function.arguments;
  try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not whole yet */ }
  make("code", make("pre", box), text);
}

// Below an answer that calls tools: a box for each result.
function answerCalls() {
  $("results")?.remove();
  const leaf = current.messages.get(current.record.leaf);
  if (!leaf?.calls?.length || running) return;
  const form = make("form", $("talk"), "", { id: "results" });
  for (const call of leaf.calls) {
    const label = make("label", form, "Result of " + call.function.name);
    make("textarea", label, "", { name: call.id, placeholder: "text or JSON", rows: 2 });
  }
  make("button", form, "Send results", { className: "main" });
  form.addEventListener("submit", (e) => {
    e.preventDefault();
    let parent = leaf.id;
    const results = leaf.calls.map((call) => {
      const m = current.add(parent, { role: "tool", callId: call.id, name: call.function.name, content: form.elements[call.id].value });
      parent = m.id;
      $("talk").append(article(m));
      return m;
    });
    keep(current, results);
    answer();
  });
}

// ---- Asking ----

function wire(m) {
  if (m.role === "tool") return { role: "tool", tool_call_id: m.callId, content: m.content };
  if (m.role === "assistant" && m.calls?.length) return { role: "assistant", content: m.content || null, tool_calls: m.calls };
  return { role: m.role, content: m.content };
}

function ask(question) {
  const path = current.path();
  const m = current.add(path.at(-1)?.id ?? 0, { role: "user", content: question });
  $("talk").append(article(m));
  keep(current, [m]);
  return answer();
}

function edit(m, e) {
  if (running || e.querySelector("form")) return;
  const form = make("form", e, "", { className: "edit" }), box = make("textarea", form, "", { value: m.content, rows: 4 });
  box.setAttribute("aria-label", "Edit your question");
  make("button", form, "Send", { className: "main" });
  make("button", form, "Cancel", { type: "button", onclick: () => form.remove() });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") form.remove();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  box.focus();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!box.value.trim() || running) return;
    const fresh = current.add(m.parent, { role: "user", content: box.value.trim() });
    keep(current, [fresh]);
    showFrom(fresh.id);
    answer();
  });
}

function again(m) {
  if (running) return;
  current.record.leaf = m.parent;
  leaveOnly(new Set(current.path().map((p) => p.id)));
  answer();
}

async function* events(reply) {
  const decoder = new TextDecoder(), reader = reply.body.getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:") && line.slice(5).trim() !== "[DONE]") yield JSON.parse(line.slice(5));
    }
  }
}

// Has the model answer what stands, and draws it as it comes.
async function answer() {
  say("");
  let fields;
  try {
    fields = requestFields();
  } catch (e) {
    say(e.message);
    return answerCalls();
  }
  const system = $("system").value.trim(), path = current.path();
  // A question that got no answer is shown, and is no part of what is asked next; nor is what was written in its place.
  const answered = path.filter((m, k) => !m.failed && !path[k + 1]?.failed);
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...answered.map(wire)];
  const body = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true }, ...fields };
  const m = current.add(current.record.leaf, { role: "assistant", content: "", reasoning: "", calls: [], note: "", model: body.model });
  running = new AbortController();
  $("results")?.remove();
  busy(true);
  const e = article(m), talk = $("talk");
  talk.append(e);
  drawBody(e);
  talk.scrollTop = talk.scrollHeight;
  const started = performance.now();
  let first = 0, usage = null, finish = "", waiting = 0;
  const draw = () => {
    waiting = 0;
    const follow = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    e.thoughts.hidden = !m.reasoning;
    e.thoughts.open = m.reasoning && !m.content;
    e.thoughts.lastChild.textContent = m.reasoning;
    e.view.set(m.content);
    e.calls.replaceChildren();
    for (const c of m.calls) drawCall(e.calls, c);
    if (follow) talk.scrollTop = talk.scrollHeight;
  };
  try {
    const reply = await post("v1/chat/completions", body, remembered.get("key"), running.signal);
    if (reply.status === 401) $("login").hidden = false;
    if (!reply.ok) throw await refusal(reply);
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices?.[0], delta = choice?.delta || {};
      if (choice?.finish_reason) finish = choice.finish_reason;
      if (event.usage) usage = event.usage;
      m.content += delta.content || "";
      m.reasoning += delta.reasoning_content || "";
      for (const c of delta.tool_calls || []) {
        const call = (m.calls[c.index] ||= { id: "", type: "function", function: { name: "", arguments: "" } });
        call.id ||= c.id || "";
        call.function.name += c.function?.name || "";
        call.function.arguments += c.function?.arguments || "";
      }
      if (delta.content || delta.reasoning_content || delta.tool_calls) first = first || performance.now();
      waiting ||= setTimeout(draw, 30);
    }
    if (!finish) throw new Error("the stream ended early");
  } catch (error) {
    finish = error.name === "AbortError" ? "stopped" : "failed";
    if (finish === "failed") m.error = error.message;
  }
  clearTimeout(waiting);
  draw();
  const seconds = (performance.now() - first) / 1000;
  m.note = [first ? "first token after " + Math.round(first - started) + " ms" : "",
            usage && usage.completion_tokens > 1 && seconds > 0 ? count((usage.completion_tokens - 1) / seconds) + " tokens/s" : "",
            usage ? usage.completion_tokens + " tokens" : "", finish].filter(Boolean).join(", ");
  m.failed = !m.content && !m.calls.length;
  running = null;
  busy(false);
  showFrom(m.id);
  drawBody(drawn.get(m.id));
  if (talk.scrollHeight - talk.scrollTop - talk.clientHeight < 200) talk.scrollTop = talk.scrollHeight;
  await keep(current, [m]);
}

function busy(yes) {
  $("send").hidden = yes;
  $("stop-answer").hidden = !yes;
  if (!yes && matchMedia("(hover: hover)").matches) $("question").focus();
}
