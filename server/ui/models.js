// Which model answers, and what the server has: models and adapters, loaded and unloaded where the server allows it
// (--model-control explicit; with --admin-key-file by a key of that file).

async function listModels() {
  const models = (await (await get("v1/models")).json()).data, chosen = $("model").value || preferred.get("model", "");
  const groups = [["Models", models.filter((m) => !m.parent)], ["Adapters", models.filter((m) => m.parent)]];
  $("model").replaceChildren();
  for (const [label, of] of groups) {
    if (!of.length) continue;
    const group = make("optgroup", $("model"), "", { label });
    for (const m of of) make("option", group, m.id, { value: m.id, title: m.max_model_len ? count(m.max_model_len) + " tokens of context" : "" });
  }
  if (models.some((m) => m.id === chosen)) $("model").value = chosen;
  $("version").textContent = (await (await get("version")).json()).version;
  document.title = models.length === 1 ? models[0].id + " \u2013 Oar" : "Oar";
  return models;
}

async function control(path, body, what) {
  const note = $("models-note");
  note.className = "";
  note.textContent = what + " \u2026";
  try {
    const reply = await post(path, body, $("admin").value || remembered.get("key"));
    if (!reply.ok) throw await refusal(reply);
    note.textContent = what + ": done";
  } catch (e) {
    note.className = "error";
    note.textContent = e.message;
  }
  await drawModels();
}

async function drawModels() {
  const table = $("models-table");
  try {
    const models = await listModels(), adapters = new Map(models.filter((m) => m.parent).map((m) => [m.id, m.parent]));
    const reply = await post("v2/repository/index", {}, remembered.get("key"));
    if (!reply.ok) throw await refusal(reply);
    table.replaceChildren();
    for (const { name, state, reason } of await reply.json()) {
      const tr = make("tr", table), base = adapters.get(name), ready = state === "READY";
      make("td", tr, name);
      make("td", tr, base ? "adapter of " + base : "");
      make("td", tr, state.toLowerCase() + (reason ? ": " + reason : ""), { className: ready ? "ready" : "" });
      const act = ready ? "unload" : "load";
      make("button", make("td", tr), ready ? "Unload" : "Load",
           { type: "button", onclick: () => control("v2/repository/models/" + encodeURIComponent(name) + "/" + act, {}, act + " " + name) });
    }
    const bases = models.filter((m) => !m.parent).map((m) => m.id);
    $("adapter-base").replaceChildren();
    for (const id of bases) make("option", $("adapter-base"), id, { value: id });
  } catch (e) {
    $("models-note").className = "error";
    $("models-note").textContent = e.message;
  }
}

function openModels() {
  $("models-note").textContent = "";
  $("admin").value = remembered.get("admin");
  $("models").showModal();
  drawModels();
}

function addAdapter(event) {
  event.preventDefault();
  const name = $("adapter-name").value.trim(), lora_path = $("adapter-path").value.trim();
  if (!name || !lora_path) return;
  const base_model_name = $("adapter-base").value || undefined;
  control("v2/repository/models/" + encodeURIComponent(name) + "/load", { parameters: { lora_path, base_model_name } }, "load adapter " + name);
}
