// What buttons and keys do, and the beginning.

const kKeys = [
  ["Enter", "send"], ["Shift+Enter", "a new line"], ["Escape", "stop the answer; close what is open"], ["/", "to the question"],
  ["Alt+N", "a new conversation"], ["Alt+R", "answer again"], ["Alt+E", "edit the last question"], ["Alt+H", "history"],
  ["Alt+S", "settings and numbers"], ["Alt+M", "models"], ["?", "this list"],
];

// ---- Light and dark: as the system says, until somebody says otherwise ----

function applyTheme() {
  const theme = preferred.get("theme", "auto");
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = { auto: "\u25d0", light: "\u2600", dark: "\u263e" }[theme];
  $("theme").title = "Colors: " + theme;
  $("theme").setAttribute("aria-label", "Colors: " + theme);
}

// ---- The sides: beside the chat where there is room, over it on a phone ----

const narrow = matchMedia("(max-width: 60rem)");
function toggle(side, open = !document.body.classList.contains(side)) {
  if (narrow.matches && open) closeDrawers();
  document.body.classList.toggle(side, open);
  if (!narrow.matches) preferred.set(side, open);
}
function closeDrawers() {
  if (narrow.matches) document.body.classList.remove("left", "right");
}
function arrange() {
  for (const side of ["left", "right"]) document.body.classList.toggle(side, !narrow.matches && preferred.get(side, true));
}

function grow() {
  const box = $("question");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, innerHeight * 0.4) + "px";
}

function submitQuestion(e) {
  e.preventDefault();
  const question = $("question").value.trim();
  if (!question || running) return;
  $("question").value = "";
  grow();
  ask(question);
}

function lastOf(role) { return current.path().findLast((m) => m.role === role); }

function onKey(e) {
  if (e.isComposing) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName);
  if (e.key === "Escape" && !$("models").open && !$("help").open) {
    if (running) running.abort();
    else closeDrawers();
    return;
  }
  const plain = !typing && !e.ctrlKey && !e.metaKey && !e.altKey;
  const question = lastOf("user"), reply = lastOf("assistant");
  const act = {
    "/": plain && (() => $("question").focus()),
    "?": plain && (() => $("help").showModal()),
    "Alt+n": newConversation,
    "Alt+r": reply && (() => again(reply)),
    "Alt+e": question && (() => { drawBody(drawn.get(question.id)); edit(question, drawn.get(question.id)); }),
    "Alt+h": () => toggle("left"),
    "Alt+s": () => toggle("right"),
    "Alt+m": openModels,
  }[(e.altKey ? "Alt+" : "") + e.key];
  if (!act || document.querySelector("dialog[open]")) return;
  e.preventDefault();
  act();
}

function begin() {
  for (const [keys, does] of kKeys) {
    make("dt", $("keys"), keys);
    make("dd", $("keys"), does);
  }
  makeTiles();
  applyTheme();
  arrange();
  restoreSettings();
  narrow.addEventListener("change", arrange);
  const on = (id, event, act) => $(id).addEventListener(event, act);
  on("theme", "click", () => {
    const order = ["auto", "light", "dark"];
    preferred.set("theme", order[(order.indexOf(preferred.get("theme", "auto")) + 1) % 3]);
    applyTheme();
  });
  on("open-left", "click", () => toggle("left"));
  on("open-right", "click", () => toggle("right"));
  on("shade", "click", closeDrawers);
  on("new", "click", newConversation);
  on("search", "input", listHistory);
  on("export", "click", exportHistory);
  on("save-text", "click", () => save((current.record.title || "conversation") + ".md", "text/markdown", current.markdown()));
  on("import", "change", (e) => { for (const f of e.target.files) importHistory(f); e.target.value = ""; });
  on("ask", "submit", submitQuestion);
  on("question", "input", grow);
  on("question", "keydown", (e) => {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    $("ask").requestSubmit();
  });
  on("stop-answer", "click", () => running?.abort());
  on("model", "change", () => preferred.set("model", $("model").value));
  on("open-models", "click", openModels);
  on("adapter", "submit", addAdapter);
  on("admin", "input", () => remembered.set("admin", $("admin").value));
  on("open-help", "click", () => $("help").showModal());
  for (const close of document.querySelectorAll("dialog .close")) close.addEventListener("click", () => close.closest("dialog").close());
  on("login", "submit", (e) => {
    e.preventDefault();
    remembered.set("key", $("key").value.trim());
  });
  for (const fill of document.querySelectorAll("[data-example]")) {
    fill.addEventListener("click", () => {
      const of = fill.dataset.example;
      $(of).value = kExamples[of === "shape" ? $("form").value : of] || "";
      $(of).dispatchEvent(new Event("input", { bubbles: true }));
    });
  }
  document.addEventListener("keydown", onKey);
  showConversation();
  openHistory();
  poll();
}
begin();
