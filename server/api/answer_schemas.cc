#include "server/api/answer_schemas.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::api {
namespace {

// Fields are "name:type", with "?" before those that may be missing; "*:any" says that there may be others. A
// type is string, int, number, bool, null, any, object, list, [T] for a list of T, {T} for an object of T, a
// name of this table, or several of these with "|" between them.
struct AnswerObject {
  std::string_view name, fields;
};
constexpr AnswerObject kObjects[] = {
    {"Nothing", ""},
    // OpenAI
    {"Usage",
     "prompt_tokens:int completion_tokens:int total_tokens:int prompt_tokens_details:{int} "
     "?completion_tokens_details:{int}"},
    {"CalledFunction", "name:string arguments:string"},
    {"ToolCall", "id:string type:string function:CalledFunction"},
    {"ChatMessage",
     "role:string content:string|null refusal:null ?reasoning_content:string ?tool_calls:[ToolCall]"},
    {"Likely", "?id:int token:string logprob:number bytes:[int]"},
    {"TokenLogprob", "?id:int token:string logprob:number bytes:[int] top_logprobs:[Likely]"},
    {"ChatLogprobs", "content:[TokenLogprob] refusal:null"},
    {"ChatChoice",
     "index:int message:ChatMessage logprobs:ChatLogprobs|null finish_reason:string "
     "stop_reason:string|int|null token_ids:[int]|null"},
    {"ChatCompletion",
     "id:string object:string created:int model:string system_fingerprint:string choices:[ChatChoice] "
     "prompt_logprobs:list|null prompt_token_ids:[int]|null usage:Usage ?__verbose:Verbose "
     "?timings:{number} ?metrics:{number} ?metadata:{string}"},
    {"Verbose", "prompt:string"},
    {"CallPart", "?name:string arguments:string"},
    {"ToolCallPart", "index:int ?id:string ?type:string function:CallPart"},
    {"ChatDelta", "?role:string ?content:string|null ?reasoning_content:string ?tool_calls:[ToolCallPart]"},
    {"ChatChunkChoice",
     "index:int delta:ChatDelta logprobs:ChatLogprobs|null finish_reason:string|null "
     "?stop_reason:string|int|null ?token_ids:[int]"},
    {"ChatChunk",
     "id:string object:string created:int model:string system_fingerprint:string choices:[ChatChunkChoice] "
     "?prompt_token_ids:[int] ?usage:Usage|null ?__verbose:Verbose ?timings:{number} ?metrics:{number} "
     "?prompt_progress:{int}"},
    {"TextLogprobs", "tokens:[string] token_logprobs:list top_logprobs:list text_offset:[int]"},
    {"TextChoice",
     "index:int text:string logprobs:TextLogprobs|null finish_reason:string stop_reason:string|int|null "
     "token_ids:[int]|null prompt_token_ids:[int]|null prompt_logprobs:list|null"},
    {"Completion",
     "id:string object:string created:int model:string system_fingerprint:string choices:[TextChoice] "
     "usage:Usage ?__verbose:Verbose ?timings:{number} ?metrics:{number}"},
    {"TextChunkChoice",
     "index:int text:string logprobs:TextLogprobs|null finish_reason:string|null "
     "?stop_reason:string|int|null ?token_ids:[int] ?prompt_token_ids:[int]"},
    {"TextChunk",
     "id:string object:string created:int model:string system_fingerprint:string choices:[TextChunkChoice] "
     "?usage:Usage|null ?__verbose:Verbose ?timings:{number} ?metrics:{number} ?prompt_progress:{int}"},
    {"ModelCard",
     "id:string object:string created:int owned_by:string root:string parent:string|null ?max_model_len:int "
     "?aliases:[string] ?tags:[string]"},
    {"ModelUnloaded", "status:string model:string"},
    {"ModelList", "object:string data:[ModelCard]"},
    {"EncoderUsage", "prompt_tokens:int total_tokens:int"},
    {"Embedding", "object:string index:int embedding:[number]|string"},
    {"Embeddings", "object:string data:[Embedding] model:string usage:EncoderUsage"},
    {"TokenEmbeddings", "index:int embedding:[[number]]|[string]"},
    {"RankedText", "text:string"},
    {"Ranked", "index:int relevance_score:number|null ?document:RankedText"},
    {"RankedByIndex", "index:int score:number|null ?text:string"},
    {"Ranking", "id:string model:string usage:EncoderUsage results:[Ranked]"},
    {"Score", "index:int object:string score:number"},
    {"Scores", "id:string object:string created:int model:string data:[Score] usage:EncoderUsage"},
    {"LabelScores", "object:string model:string scores:[[number]] usage:ScoreUsage"},
    {"ScoreUsage", "prompt_tokens:int total_tokens:int completion_tokens:int"},
    {"LikelyAnswer", "value:string|bool|int ?label:string probability:number"},
    {"DecisionAnswer",
     "type:string name:string|null ?probability:number ?choice:string|bool ?score:number "
     "?probabilities:[LikelyAnswer] ?confidence:number"},
    {"Decisions", "model:string answers:[DecisionAnswer] usage:ResponseUsage"},
    {"Labelled", "index:int label:string probs:[number] num_classes:int"},
    {"Labels", "id:string object:string created:int model:string data:[Labelled] usage:EncoderUsage"},
    {"Pooled", "index:int object:string data:[number]|string|[[number]]|[string]"},
    {"Pooling", "id:string object:string created:int model:string data:[Pooled] usage:EncoderUsage"},
    {"OutputText", "type:string text:string ?annotations:list ?logprobs:list"},
    {"OutputItem",
     "id:string type:string status:string ?role:string ?content:[OutputText] ?summary:list ?call_id:string "
     "?name:string ?arguments:string"},
    {"ResponseUsage",
     "input_tokens:int input_tokens_details:{int} output_tokens:int output_tokens_details:{int} "
     "total_tokens:int"},
    {"Incomplete", "reason:string"},
    {"Response",
     "id:string object:string created_at:int status:string background:bool error:null "
     "incomplete_details:Incomplete|null instructions:string|null model:string output:[OutputItem] "
     "previous_response_id:string|null store:bool truncation:string tools:[object] "
     "tool_choice:string|object parallel_tool_calls:bool text:object reasoning:object metadata:{string} "
     "temperature:number top_p:number max_output_tokens:int|null ?conversation:object usage:ResponseUsage "
     "?input_messages:[RawMessage] ?output_messages:[RawMessage]"},
    {"RawMessage", "type:string message:string tokens:[int]"},
    {"ConversationItem", "id:string type:string status:string *:any"},
    {"StoredConversation", "id:string object:string created_at:int metadata:{string}"},
    {"CountedInput", "object:string input_tokens:int"},
    {"ResponseEvent", "type:string sequence_number:int *:any"},
    {"File",
     "id:string object:string bytes:int created_at:int expires_at:int|null filename:string purpose:string "
     "status:string"},
    {"BatchError", "code:string message:string param:string|null line:int|null"},
    {"BatchErrors", "object:string data:[BatchError]"},
    {"Batch",
     "id:string object:string endpoint:string errors:BatchErrors|null input_file_id:string "
     "completion_window:string status:string output_file_id:string|null error_file_id:string|null "
     "created_at:int in_progress_at:int|null expires_at:int finalizing_at:int|null completed_at:int|null "
     "failed_at:int|null expired_at:int|null cancelling_at:int|null cancelled_at:int|null "
     "request_counts:{int} metadata:object|null"},
    {"FileList", "object:string data:[File] has_more:bool first_id:string|null last_id:string|null"},
    {"BatchList", "object:string data:[Batch] has_more:bool first_id:string|null last_id:string|null"},
    {"ItemList", "object:string data:[object] has_more:bool first_id:string|null last_id:string|null"},
    {"Deleted", "id:string object:string deleted:bool"},
    // Anthropic
    {"AnthropicModel", "type:string id:string display_name:string created_at:string"},
    {"AnthropicModels", "data:[AnthropicModel] has_more:bool first_id:string|null last_id:string|null"},
    {"MessagePart",
     "type:string ?text:string ?thinking:string ?signature:string ?id:string ?name:string ?input:object"},
    {"Message",
     "id:string type:string role:string model:string content:[MessagePart] stop_reason:string "
     "stop_sequence:string|null usage:{int}"},
    {"MessageEvent", "type:string *:any"},
    {"TokenCount", "input_tokens:int"},
    // vLLM, llama.cpp
    {"Piece", "id:int piece:string"},
    {"Tokens", "tokens:[int]|[Piece] ?count:int ?max_model_len:int ?token_strs:[string]|null"},
    {"Detokenized", "prompt:string content:string"},
    {"Prompt", "prompt:string"},
    {"LikelyDraw", "id:int token:string prob:number bytes:[int]"},
    {"TokenProbability", "id:int token:string prob:number bytes:[int] top_probs:[LikelyDraw]"},
    {"LlamaCompletion",
     "index:int content:string tokens:[int] stop:bool tokens_predicted:int tokens_evaluated:int "
     "?completion_probabilities:[TokenLogprob]|[TokenProbability] model:string generation_settings:object "
     "prompt:string "
     "has_new_line:bool truncated:bool stop_type:string stopping_word:string tokens_cached:int "
     "timings:{number}"},
    {"LlamaChunk",
     "index:int content:string tokens:[int] stop:bool tokens_predicted:int tokens_evaluated:int "
     "?completion_probabilities:[TokenLogprob]|[TokenProbability] ?model:string ?generation_settings:object "
     "?prompt:string "
     "?has_new_line:bool ?truncated:bool ?stop_type:string ?stopping_word:string ?tokens_cached:int "
     "?timings:{number} ?prompt_progress:{int}"},
    {"LlamaProps",
     "default_generation_settings:object model_alias:string model_path:string modalities:{bool} "
     "chat_template:string bos_token:string eos_token:string total_slots:int is_sleeping:bool "
     "build_info:string"},
    {"LlamaSlot", "id:int n_ctx:int is_processing:bool"},
    {"Version", "version:string"},
    {"ServerLoad", "server_load:int"},
    {"Sleeping", "is_sleeping:bool"},
    {"HealthStatus", "status:string"},
    // Ollama
    {"OllamaFunction", "name:string arguments:object"},
    {"OllamaCall", "id:string function:OllamaFunction"},
    {"OllamaMessage", "role:string content:string ?thinking:string ?tool_calls:[OllamaCall]"},
    {"OllamaChat",
     "model:string created_at:string message:OllamaMessage done:bool ?done_reason:string "
     "?logprobs:[TokenLogprob] "
     "?total_duration:int ?load_duration:int ?prompt_eval_count:int ?prompt_eval_duration:int "
     "?eval_count:int "
     "?eval_duration:int"},
    {"OllamaGenerate",
     "model:string created_at:string response:string ?thinking:string done:bool ?done_reason:string "
     "?logprobs:[TokenLogprob] ?total_duration:int ?load_duration:int ?prompt_eval_count:int "
     "?prompt_eval_duration:int ?eval_count:int ?eval_duration:int"},
    {"OllamaDetails",
     "parent_model:string format:string family:string families:[string] parameter_size:string "
     "quantization_level:string"},
    {"OllamaModel",
     "name:string model:string ?modified_at:string size:int details:OllamaDetails ?context_length:int"},
    {"OllamaModels", "models:[OllamaModel]"},
    {"OllamaShow",
     "?parameters:string ?template:string details:OllamaDetails model_info:object capabilities:[string] "
     "?modified_at:string"},
    {"OllamaEmbed",
     "model:string embeddings:[[number]] total_duration:int load_duration:int prompt_eval_count:int"},
    {"OllamaEmbedding", "embedding:[number]"},
    // Open Inference Protocol
    {"ServerMetadata", "name:string version:string extensions:[string]"},
    {"TensorMetadata", "name:string datatype:string shape:[int]"},
    {"ModelMetadata",
     "name:string versions:[string] platform:string inputs:[TensorMetadata] outputs:[TensorMetadata] "
     "?properties:{string}"},
    {"ConfigTensor", "name:string data_type:string dims:[int] ?optional:bool"},
    {"InstanceGroup", "name:string kind:string count:int"},
    {"EnsembleStep", "model_name:string model_version:int input_map:{string} output_map:{string}"},
    {"EnsembleScheduling", "step:[EnsembleStep]"},
    {"TransactionPolicy", "decoupled:bool"},
    {"QueuePolicy",
     "timeout_action:string default_timeout_microseconds:int allow_timeout_override:bool "
     "max_queue_size:int"},
    {"DynamicBatching",
     "preferred_batch_size:[int] max_queue_delay_microseconds:int default_queue_policy:QueuePolicy"},
    {"ModelConfig",
     "name:string platform:string backend:string max_batch_size:int input:[ConfigTensor] "
     "output:[ConfigTensor] ?instance_group:[InstanceGroup] ?ensemble_scheduling:EnsembleScheduling "
     "?model_transaction_policy:TransactionPolicy ?dynamic_batching:DynamicBatching"},
    {"Duration", "count:int ns:int"},
    {"BatchStatistic",
     "batch_size:int compute_input:Duration compute_infer:Duration compute_output:Duration"},
    {"ModelStatistic",
     "name:string version:string last_inference:int inference_count:int execution_count:int "
     "inference_stats:{Duration} batch_stats:[BatchStatistic]"},
    {"ModelStatistics", "model_stats:[ModelStatistic]"},
    {"OutputTensor", "name:string datatype:string shape:[int] ?parameters:object ?data:list"},
    {"Inference", "model_name:string model_version:string ?id:string outputs:[OutputTensor]"},
    {"GeneratedText", "?id:string model_name:string model_version:string text_output:string"},
    {"IndexEntry", "name:string version:string state:string reason:string"},
    {"MemoryRegion", "name:string key:string offset:int byte_size:int"},
    {"TraceSettings",
     "trace_file:string trace_level:[string] trace_rate:string trace_count:string log_frequency:string "
     "trace_mode:string"},
    {"LogSettings",
     "log_file:string log_info:bool log_warning:bool log_error:bool log_verbose_level:int log_format:string"},
};

// `type` is the answer's: empty where it has no body, kNever where the route always refuses. `piece` is that
// of an event or line of a stream. Either is a media type where there is no JSON.
constexpr std::string_view kNever = "never";
struct AnswerRoute {
  std::string_view method, pattern, type, piece = {};
};
constexpr AnswerRoute kRoutes[] = {
    {"GET", "/", "text/html"},
    {"GET", "/docs", "text/html"},
    {"GET", "/openapi.json", "object"},
    {"GET", "/metrics", "text/plain"},
    {"GET", "/version", "Version"},
    {"GET", "/load", "ServerLoad"},
    {"GET", "/ping", ""},
    {"POST", "/invocations", "ChatCompletion|Completion", "ChatChunk|TextChunk"},
    {"GET", "/health", "HealthStatus"},
    {"GET", "/health/live", ""},
    {"GET", "/health/ready", ""},
    // OpenAI, and what others ask of encoders
    {"POST", "/v1/chat/completions", "ChatCompletion", "ChatChunk"},
    {"GET", "/v1/chat/completions", "ItemList"},
    {"GET", "/v1/chat/completions/{id}", "ChatCompletion"},
    {"POST", "/v1/chat/completions/{id}", "ChatCompletion"},
    {"DELETE", "/v1/chat/completions/{id}", "Deleted"},
    {"GET", "/v1/chat/completions/{id}/messages", "ItemList"},
    {"POST", "/v1/completions", "Completion", "TextChunk"},
    {"POST", "/v1/decisions", "Decisions"},
    {"GET", "/v1/models", "ModelList|AnthropicModels"},
    {"GET", "/v1/models/{id*}", "ModelCard|AnthropicModel"},
    {"POST", "/v1/models/{model}/load", "ModelCard"},
    {"POST", "/v1/models/{model}/unload", "ModelUnloaded"},
    {"POST", "/v1/embeddings", "Embeddings"},
    {"POST", "/embeddings", "Embeddings|[TokenEmbeddings]"},
    {"POST", "/v1/rerank", "Ranking|[RankedByIndex]"},
    {"POST", "/v2/rerank", "Ranking|[RankedByIndex]"},
    {"POST", "/rerank", "Ranking|[RankedByIndex]"},
    {"POST", "/v1/score", "Scores|LabelScores"},
    {"POST", "/score", "Scores|LabelScores"},
    {"POST", "/v1/classify", "Labels"},
    {"POST", "/classify", "Labels"},
    {"POST", "/v1/pooling", "Pooling"},
    {"POST", "/pooling", "Pooling"},
    {"POST", "/v1/responses", "Response", "ResponseEvent"},
    {"POST", "/v1/responses/input_tokens", "CountedInput"},
    {"POST", "/v1/chat/completions/input_tokens", "CountedInput"},
    {"POST", "/v1/responses/{id}/cancel", kNever},
    {"GET", "/v1/responses/{id}", "Response", "ResponseEvent"},
    {"DELETE", "/v1/responses/{id}", "Deleted"},
    {"GET", "/v1/responses/{id}/input_items", "ItemList"},
    {"POST", "/v1/conversations", "StoredConversation"},
    {"GET", "/v1/conversations/{id}", "StoredConversation"},
    {"POST", "/v1/conversations/{id}", "StoredConversation"},
    {"DELETE", "/v1/conversations/{id}", "Deleted"},
    {"GET", "/v1/conversations/{id}/items", "ItemList"},
    {"POST", "/v1/conversations/{id}/items", "ItemList"},
    {"GET", "/v1/conversations/{id}/items/{item}", "ConversationItem"},
    {"DELETE", "/v1/conversations/{id}/items/{item}", "StoredConversation"},
    {"POST", "/v1/files", "File"},
    {"GET", "/v1/files", "FileList"},
    {"GET", "/v1/files/{id}", "File"},
    {"DELETE", "/v1/files/{id}", "Deleted"},
    {"GET", "/v1/files/{id}/content", "application/octet-stream"},
    {"POST", "/v1/batches", "Batch"},
    {"GET", "/v1/batches", "BatchList"},
    {"GET", "/v1/batches/{id}", "Batch"},
    {"POST", "/v1/batches/{id}/cancel", "Batch"},
    // Anthropic
    {"POST", "/v1/messages", "Message", "MessageEvent"},
    {"POST", "/v1/messages/count_tokens", "TokenCount"},
    // vLLM, llama.cpp
    {"POST", "/tokenize", "Tokens"},
    {"POST", "/detokenize", "Detokenized"},
    {"POST", "/v1/load_lora_adapter", "Nothing"},
    {"POST", "/v1/unload_lora_adapter", "Nothing"},
    {"POST", "/sleep", "Nothing"},
    {"POST", "/wake_up", "Nothing"},
    {"GET", "/is_sleeping", "Sleeping"},
    {"POST", "/apply-template", "Prompt"},
    {"POST", "/completion", "LlamaCompletion|[LlamaCompletion]|object|[object]", "LlamaChunk|object"},
    {"POST", "/completions", "LlamaCompletion|[LlamaCompletion]|object|[object]", "LlamaChunk|object"},
    {"POST", "/infill", "LlamaCompletion|object", "LlamaChunk|object"},
    {"GET", "/props", "LlamaProps"},
    {"POST", "/props", kNever},
    {"GET", "/slots", "[LlamaSlot]"},
    {"POST", "/slots/{id}", kNever},
    // Ollama
    {"GET", "/api/version", "Version"},
    {"POST", "/api/chat", "OllamaChat", "OllamaChat"},
    {"POST", "/api/generate", "OllamaGenerate", "OllamaGenerate"},
    {"GET", "/api/tags", "OllamaModels"},
    {"GET", "/api/ps", "OllamaModels"},
    {"POST", "/api/show", "OllamaShow"},
    {"POST", "/api/embed", "OllamaEmbed"},
    {"POST", "/api/embeddings", "OllamaEmbedding"},
    {"POST", "/api/pull", kNever},
    {"POST", "/api/create", kNever},
    {"POST", "/api/copy", kNever},
    {"POST", "/api/push", kNever},
    {"DELETE", "/api/delete", kNever},
    {"POST", "/api/blobs/{digest}", kNever},
    // Open Inference Protocol
    {"GET", "/v2", "ServerMetadata"},
    {"GET", "/v2/health/live", ""},
    {"GET", "/v2/health/ready", ""},
    {"GET", "/v2/models/stats", "ModelStatistics"},
    {"GET", "/v2/models/{model}", "ModelMetadata"},
    {"GET", "/v2/models/{model}/ready", ""},
    {"GET", "/v2/models/{model}/config", "ModelConfig"},
    {"GET", "/v2/models/{model}/stats", "ModelStatistics"},
    {"POST", "/v2/models/{model}/infer", "Inference", "application/octet-stream"},
    {"POST", "/v2/models/{model}/generate", "GeneratedText"},
    {"POST", "/v2/models/{model}/generate_stream", "", "GeneratedText"},
    {"GET", "/v2/models/{model}/versions/{version}", "ModelMetadata"},
    {"GET", "/v2/models/{model}/versions/{version}/ready", ""},
    {"GET", "/v2/models/{model}/versions/{version}/config", "ModelConfig"},
    {"GET", "/v2/models/{model}/versions/{version}/stats", "ModelStatistics"},
    {"POST", "/v2/models/{model}/versions/{version}/infer", "Inference", "application/octet-stream"},
    {"POST", "/v2/models/{model}/versions/{version}/generate", "GeneratedText"},
    {"POST", "/v2/models/{model}/versions/{version}/generate_stream", "", "GeneratedText"},
    {"POST", "/v2/repository/index", "[IndexEntry]"},
    {"POST", "/v2/repository/models/{model}/load", "Nothing"},
    {"POST", "/v2/repository/models/{model}/unload", "Nothing"},
    {"GET", "/v2/trace/setting", "TraceSettings"},
    {"POST", "/v2/trace/setting", "TraceSettings"},
    {"GET", "/v2/models/{model}/trace/setting", "TraceSettings"},
    {"POST", "/v2/models/{model}/trace/setting", "TraceSettings"},
    {"GET", "/v2/logging", "LogSettings"},
    {"POST", "/v2/logging", "LogSettings"},
    {"GET", "/v2/systemsharedmemory/status", "[MemoryRegion]"},
    {"POST", "/v2/systemsharedmemory/unregister", "Nothing"},
    {"POST", "/v2/systemsharedmemory/region/{name}/register", "Nothing"},
    {"GET", "/v2/systemsharedmemory/region/{name}/status", "[MemoryRegion]"},
    {"POST", "/v2/systemsharedmemory/region/{name}/unregister", "Nothing"},
    {"GET", "/v2/cudasharedmemory/status", "[MemoryRegion]"},
    {"POST", "/v2/cudasharedmemory/unregister", "Nothing"},
    {"GET", "/v2/cudasharedmemory/region/{rest*}", kNever},
    {"POST", "/v2/cudasharedmemory/region/{rest*}", kNever},
};

// The part of `text` before `end`, which goes with it.
std::string_view cut_at(std::string_view& text, char end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return out;
}

json::object of_type(std::string_view type) {
  if (type.find('|') != type.npos) {
    json::array any;
    while (!type.empty()) any.emplace_back(of_type(cut_at(type, '|')));
    return {{"anyOf", std::move(any)}};
  }
  if (type.front() == '[') return {{"type", "array"}, {"items", of_type(type.substr(1, type.size() - 2))}};
  if (type.front() == '{')
    return {{"type", "object"}, {"additionalProperties", of_type(type.substr(1, type.size() - 2))}};
  if (type == "any") return {};
  if (type == "int") return {{"type", "integer"}};
  if (type == "bool") return {{"type", "boolean"}};
  if (type == "list") return {{"type", "array"}};
  if (type == "string" || type == "number" || type == "null" || type == "object")
    return {{"type", json::string(type)}};
  return {{"$ref", cat("#/components/schemas/", type)}};
}

json::object of_fields(std::string_view fields) {
  json::object properties;
  json::array required;
  bool more = false;
  while (!fields.empty()) {
    std::string_view field = cut_at(fields, ' ');
    if (field.empty()) continue;
    const bool optional = field.front() == '?';
    if (optional) field.remove_prefix(1);
    const std::string_view name = cut_at(field, ':');
    if (name == "*") {
      more = true;
      continue;
    }
    properties[name] = of_type(field);
    if (!optional) required.emplace_back(json::string(name));
  }
  json::object out{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) out["required"] = std::move(required);
  if (!more) out["additionalProperties"] = false;
  return out;
}

bool is_media(std::string_view type) { return type.find('/') != type.npos; }

// Of an event, whose data is text that has JSON.
json::object of_event(std::string_view type) {
  const json::object data{
      {"type", "string"}, {"contentMediaType", "application/json"}, {"contentSchema", of_type(type)}};
  return {{"type", "object"}, {"required", json::array{"data"}}, {"properties", {{"data", data}}}};
}

}  // namespace

std::optional<json::object> answer_content(std::string_view method, std::string_view pattern) {
  json::object out;
  for (const AnswerRoute& a : kRoutes) {
    if (a.method != method || a.pattern != pattern) continue;
    if (a.type == kNever) return std::nullopt;
    for (const std::string_view type : {a.type, a.piece})
      if (is_media(type)) out[type] = json::object();
    if (!a.type.empty() && !is_media(a.type))
      out["application/json"] = json::object{{"schema", of_type(a.type)}};
    if (a.piece.empty() || is_media(a.piece)) break;
    if (pattern.starts_with("/api/"))
      out["application/x-ndjson"] = json::object{{"schema", of_type(a.piece)}};
    else out["text/event-stream"] = json::object{{"schema", of_event(a.piece)}};
    break;
  }
  return out;
}

std::vector<std::pair<std::string_view, std::string_view>> answered_routes() {
  std::vector<std::pair<std::string_view, std::string_view>> out;
  for (const AnswerRoute& a : kRoutes) out.emplace_back(a.method, a.pattern);
  return out;
}

json::object answer_objects() {
  json::object out;
  for (const AnswerObject& o : kObjects) out[o.name] = of_fields(o.fields);
  return out;
}

}  // namespace oar::api
