// How the server is doing: /metrics once a second, as tiles with a minute of history.

const kSamples = 60, kEverySeconds = 1;
const count = (v) => v.toLocaleString("en", { maximumFractionDigits: v < 100 ? 1 : 0 });
const percent = (v) => count(100 * v) + " %";
const bytes = (v) => v >= 1e9 ? (v / 1e9).toFixed(2) + " GB" : (v / 1e6).toFixed(0) + " MB";
const tiles = [
  { name: "Tokens written per second", unit: count, of: (s) => s.rate("vllm:generation_tokens_total"), plot: true },
  { name: "Prompt tokens per second", unit: count, of: (s) => s.rate("vllm:prompt_tokens_total"), plot: true },
  { name: "Running", unit: count, of: (s) => s.sum("vllm:num_requests_running") + s.sum("oar_inference_running_requests"), plot: true },
  { name: "Queue", unit: count, of: (s) => s.sum("vllm:num_requests_waiting") + s.sum("nv_inference_pending_request_count"), plot: true },
  { name: "KV cache in use", unit: percent, of: (s) => s.most("vllm:kv_cache_usage_perc"), plot: true, full: 1 },
  { name: "Between two tokens", unit: (v) => v === null ? "\u2013" : count(1000 * v) + " ms", of: (s) => s.mean("vllm:inter_token_latency_seconds") },
  { name: "Memory of the process", unit: bytes, of: (s) => s.sum("process_resident_memory_bytes") },
];

// Samples of one scrape by name; several of one name (models) are kept apart until asked for.
class Scrape {
  constructor(text, at, before) {
    this.at = at;
    this.before = before && { at: before.at, sum: (name) => before.sum(name) };
    this.values = new Map();
    for (const line of text.split("\n")) {
      const m = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$/.exec(line);
      if (m) this.values.set(m[1], [...(this.values.get(m[1]) || []), Number(m[2])]);
    }
  }
  sum(name) { return (this.values.get(name) || []).reduce((a, b) => a + b, 0); }
  most(name) { return Math.max(0, ...(this.values.get(name) || [])); }
  grown(name) { return this.before ? Math.max(0, this.sum(name) - this.before.sum(name)) : 0; }
  rate(name) { return this.before ? this.grown(name) / ((this.at - this.before.at) / 1000) : 0; }
  mean(name) { const n = this.grown(name + "_count"); return n ? this.grown(name + "_sum") / n : null; }
}

function makeTiles() {
  for (const tile of tiles) {
    make("dt", $("numbers"), tile.name);
    tile.value = make("dd", $("numbers"));
    tile.text = tile.value.appendChild(document.createTextNode("\u2013"));
    if (!tile.plot) continue;
    tile.history = [];
    const svg = tile.value.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    svg.setAttribute("viewBox", "0 0 " + (kSamples - 1) + " 20");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    tile.line = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  }
}

function show(tile, v) {
  tile.text.data = tile.unit(v);
  if (!tile.plot) return;
  tile.history = [...tile.history, v].slice(-kSamples);
  const top = tile.full || Math.max(1, ...tile.history), from = kSamples - tile.history.length;
  tile.line.setAttribute("points", tile.history.map((y, i) => (from + i) + "," + (19 - 18 * y / top).toFixed(2)).join(" "));
}

let last = null;
async function poll() {
  let state = "unreachable", text = "no answer";
  try {
    const health = await fetch("health/ready", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    [state, text] = health.ok ? ["ready", "ready"] : ["waiting", "not ready"];
    last = new Scrape(await (await get("metrics")).text(), performance.now(), last);
    for (const tile of tiles) show(tile, tile.of(last));
    if (!$("model").options.length) await listModels();
  } catch {
    last = null;
    if (!$("login").hidden) text += ", an API key is needed";
  }
  $("health").dataset.state = state;
  $("health").textContent = text;
  setTimeout(poll, 1000 * (document.hidden ? 10 : 1) * kEverySeconds);
}
