// What a question is asked with: system prompt, sampling, the form of the answer, tools. Kept in this browser. A field that is
// empty is not sent, so the model's own default holds.

// Form fields that are sent as they are called, as numbers.
const kNumbers = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
                  "max_tokens", "thinking_token_budget"];
const kTexts = ["system", "stop", "form", "shape", "tools", "tool_choice", "template"];
const kExamples = {
  json_schema: JSON.stringify({ type: "object", properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
                                required: ["name", "age"], additionalProperties: false }, null, 2),
  regex: "(yes|no), because [a-z ]{5,80}\\.",
  grammar: "root ::= \"yes\" | \"no\"",
  tools: JSON.stringify([{ type: "function", function: { name: "get_weather", description: "Weather of a city, now",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }], null, 2),
};

function restoreSettings() {
  const kept = preferred.get("settings", {});
  for (const id of [...kNumbers, ...kTexts]) if (kept[id] !== undefined) $(id).value = kept[id];
  formChanged();
  $("settings").addEventListener("input", () => {
    preferred.set("settings", Object.fromEntries([...kNumbers, ...kTexts].map((id) => [id, $(id).value])));
    formChanged();
  });
}

// The box for a schema, pattern or grammar is there when one is wanted; what can be checked here is.
function formChanged() {
  const form = $("form").value;
  $("shape").hidden = !(form in kExamples);
  $("shape").placeholder = kExamples[form] || "";
  const wrong = (id, of) => {
    let message = "";
    try { of(); } catch (e) { message = e.message; }
    $(id).setCustomValidity(message);
    $(id + "-wrong").textContent = message;
  };
  wrong("shape", () => form === "json_schema" && json("shape"));
  wrong("tools", () => toolList());
  wrong("template", () => json("template"));
  // What is folded away and in use is told.
  const uses = { "for-system": ["system"], "for-sampling": kNumbers.concat("stop"), "for-tools": ["tools"], "for-template": ["template"] };
  for (const [id, fields] of Object.entries(uses)) $(id).classList.toggle("used", fields.some((f) => $(f).value.trim()));
  $("for-form").classList.toggle("used", form !== "text");
}

function json(id) {
  const text = $(id).value.trim();
  return text ? JSON.parse(text) : undefined;
}
function toolList() {
  const tools = json("tools");
  if (tools !== undefined && !Array.isArray(tools)) throw new Error("tools are an array");
  return tools;
}

// The fields of a chat request besides messages. Throws what a person can mend.
function requestFields() {
  const body = {};
  for (const id of kNumbers) {
    if ($(id).validity.badInput) throw new Error(id + " is no number");
    if ($(id).value !== "") body[id] = Number($(id).value);
  }
  const said = (id, of) => {
    try { return of(); } catch (e) { throw new Error(id + ": " + e.message); }
  };
  if ($("stop").value) body.stop = $("stop").value.split("\n").filter(Boolean).map((s) => s.replaceAll("\\n", "\n"));
  const form = $("form").value, shape = $("shape").value || kExamples[form];
  if (form === "json_object") body.response_format = { type: "json_object" };
  if (form === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: said("JSON schema", () => JSON.parse(shape)) } };
  }
  if (form === "regex") body.structured_outputs = { regex: shape };
  if (form === "grammar") body.structured_outputs = { grammar: shape };
  const tools = said("tools", toolList), template = said("template variables", () => json("template"));
  if (tools?.length) Object.assign(body, { tools, tool_choice: $("tool_choice").value });
  if (template) body.chat_template_kwargs = template;
  return body;
}
