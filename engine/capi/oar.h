/* oar.h: the C interface of Oar. Load a language model, ask it, get its words as they come.
 *
 *   oar_model model;
 *   oar_generation answer;
 *   if (oar_model_load("demo", NULL, &model) != OAR_OK) { puts(oar_last_error()); return 1; }
 *   oar_generate_chat(model, "[{\"role\": \"user\", \"content\": \"Hello!\"}]", NULL, print, NULL, &answer);
 *   oar_generation_wait(answer, -1);
 *   oar_generation_close(answer);
 *   oar_model_close(model);
 *
 * Compile and link with `pkg-config --cflags --libs oar`, or find_package(oar) and oar::oar in CMake.
 *
 * Errors. Every call that can fail returns an oar_status; what went wrong, with the field, its value and the
 * remedy, is in oar_last_error() of the calling thread. No exception and no signal leaves the library for a
 * caller's or a file's fault.
 *
 * Handles. Models, generations, encoders, predictors and outputs are numbers, never pointers. Zero is never a
 * handle. A handle that was closed, was never given out or belongs to another kind of object is refused with
 * OAR_INVALID_ARGUMENT. So closing twice is an error message and not a crash.
 *
 * Threads. Every function may be called from any thread at any time, also on the same handle, except where a
 * function says otherwise. Closing a handle while another thread is inside a call with it is safe: the object
 * lives until that call returns.
 *
 * Strings are UTF-8. Those that go in end with a zero byte and are copied before the call returns; those that
 * come out belong to the library and live as long as the function says.
 *
 * fork(). The threads of a model do not exist in a forked child. There, handles of the parent are refused
 * with OAR_FAILED_PRECONDITION; the child may load models of its own.
 *
 * At exit what is still open is abandoned: generations are cancelled, and no callback begins any more.
 *
 * Stability. Structures begin with their size, so that new fields can be added at their end; enumerations
 * and functions only grow. OAR_ABI_VERSION and the library's soname change when that is broken.
 */
#ifndef OAR_H
#define OAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OAR_API __attribute__((visibility("default")))
#else
#define OAR_API
#endif

#define OAR_ABI_VERSION 0

/* One to one with the canonical codes of gRPC. */
typedef enum oar_status {
  OAR_OK = 0,
  OAR_CANCELLED = 1,
  OAR_UNKNOWN = 2,
  OAR_INVALID_ARGUMENT = 3,  /* the caller's fault: the message names argument, value and remedy */
  OAR_DEADLINE_EXCEEDED = 4, /* a timeout passed */
  OAR_NOT_FOUND = 5,
  OAR_ALREADY_EXISTS = 6,
  OAR_PERMISSION_DENIED = 7,
  OAR_RESOURCE_EXHAUSTED = 8, /* memory, or the queue of requests is full: try again later */
  OAR_FAILED_PRECONDITION = 9,
  OAR_ABORTED = 10,
  OAR_OUT_OF_RANGE =
      11, /* a text is too long for the model, or a buffer too small: its length says how large */
  OAR_UNIMPLEMENTED = 12,
  OAR_INTERNAL = 13,
  OAR_UNAVAILABLE = 14, /* draining, or the device has failed */
  OAR_DATA_LOSS = 15,   /* a file contradicts itself */
  OAR_UNAUTHENTICATED = 16
} oar_status;

typedef uint64_t oar_model;
typedef uint64_t oar_generation;

/* ---- Library ------------------------------------------------------------------------------------------ */

/* OAR_ABI_VERSION of the library; compare it with the header's when the library was found by dlopen(). */
OAR_API uint32_t oar_abi_version(void);

/* "0.1.0". Static. */
OAR_API const char* oar_version(void);

/* "INVALID_ARGUMENT" and so on; "UNKNOWN" for a number that is no status. Static. */
OAR_API const char* oar_status_name(oar_status status);

/* Why the last call on this thread failed; empty after a call that succeeded. Never NULL. Valid until the
 * next call on this thread; the functions of this section leave it alone. */
OAR_API const char* oar_last_error(void);

/* Name of the argument or field at fault, where the last error has one, else empty. As oar_last_error(). */
OAR_API const char* oar_last_error_param(void);

/* Closes every handle. Afterwards every call that needs a handle or makes one is refused with
 * OAR_FAILED_PRECONDITION. Waits for running callbacks; not to be called from one (OAR_FAILED_PRECONDITION).
 * A second call does nothing. */
OAR_API oar_status oar_shutdown(void);

/* ---- Models ------------------------------------------------------------------------------------------- */

typedef enum oar_log_level {
  OAR_LOG_DEBUG = 0,
  OAR_LOG_INFO = 1,
  OAR_LOG_WARNING = 2,
  OAR_LOG_ERROR = 3
} oar_log_level;

/* Called from any thread of the model, possibly at once; must not call the library. `message` lives during
 * the call. */
typedef void (*oar_log_callback)(oar_log_level level, const char* message, void* user);

/* Progress of loading, on the loading thread. Return 0 to go on; anything else ends the loading with
 * OAR_CANCELLED. `done` and `total` (0: unknown) are in the same unit, usually bytes. Must not call the
 * library. */
typedef int (*oar_progress_callback)(const char* what, uint64_t done, uint64_t total, void* user);

/* Fill with oar_model_options_init(), then change what should differ. */
typedef struct oar_model_options {
  uint32_t struct_size;     /* sizeof(oar_model_options), set by the init function */
  int32_t threads;          /* 0: all usable CPUs */
  const char* weights;      /* NULL: as in the file; f32, bf16, f16, int8, ... */
  const char* kv;           /* NULL: no narrower than the file; f32, bf16, f16, ... */
  int64_t max_context;      /* tokens of one sequence; 0: the model's, as far as memory allows */
  int64_t max_batch_tokens; /* token budget of one step; 0: 512 */
  int64_t max_sequences;    /* running at once; 0: 64 */
  int64_t max_waiting;      /* requests in the queue before more are refused; 0: 4096 */
  uint64_t memory_bytes;    /* budget for weights, KV cache and scratch; 0: 80 % of what is available */
  uint64_t seed;            /* of requests without one; 0: from the clock */
  int32_t no_prefix_cache;  /* 1: do not keep the pages of prompts for reuse */
  int32_t deterministic;    /* 1: one reduction order for every batch, chunking and number of threads */
  int32_t no_mmap;          /* 1: read the file instead of mapping it */
  int32_t no_cache;         /* 1: keep no weights for the next load, and use none; see cache_dir */
  oar_log_callback log;     /* NULL: events are dropped */
  void* log_user;
  oar_progress_callback progress; /* NULL: none */
  void* progress_user;
  /* Weights that `weights` has quantized are kept as files, which the next load maps in place of quantizing
   * again: in `cache_dir`/weights; NULL: $XDG_CACHE_HOME/oar/weights, else ~/.cache/oar/weights, and without
   * either they are kept nowhere. A file is used only while every byte of it is as written, and made anew
   * otherwise. Before one is written, the least recently used are removed, so that all have at most
   * `cache_bytes`; 0: 64 GiB. They may be removed at any time, and the folder be moved, copied or shared. */
  const char* cache_dir;
  uint64_t cache_bytes;
  /* 1: control tokens in the text of messages count, as oar_generate_chat() leaves them text otherwise. Then
   * users can end their turn and begin another's; for a single trusted writer. */
  int32_t allow_special_in_text;
  /* 1: on a device that computes prompts and generated tokens in two ways, prompts also take cached pages of
   * generated tokens. Then an answer depends, by roundings, on what the cache holds. Refused elsewhere. */
  int32_t mixed_prefix;
  /* NULL: the CPU; or a plug-in's device, NAME or NAME:INDEX for a liboar_NAME.so beside the program, or the
   * path of one (docs/plugins.md). */
  const char* device;
  /* How the model writes tool calls and reasoning, by name (docs/tools.md); NULL: as its chat template says.
   */
  const char* tool_parser;
  const char* reasoning_parser;
  /* Speculative decoding, which changes no text: NULL or "none"; or "ngram", prompt lookup. What followed the
   * last tokens where they stood before is verified, several tokens in one step, where that pays; or "draft",
   * what `draft_model` says. */
  const char* speculative;
  int64_t num_speculative_tokens; /* drafts of a sequence in one step at most, 1 to 64; 0: 8 */
  int32_t prompt_lookup_min;      /* last tokens that must have stood there, 1 to 64; 0: 2 */
  int32_t prompt_lookup_max;      /* last tokens that are compared, likewise; longer runs win; 0: 4 */
  /* A smaller model of the same tokenizer, any path or name that oar_model_load() takes. Its weights and
   * cache are in the budget of `memory_bytes`. NULL: none. */
  const char* draft_model;
  /* Slots for adapters (LoRA), 0 to 1024: so many may be loaded at once, with oar_model_load_lora(). Their
   * memory is taken at the load. 0: none, and nothing is slower. */
  int64_t max_loras;
  int64_t max_lora_rank; /* the largest rank of an adapter, 1 to 512; 0: 16 */
  /* Of models with a recurrent state: bytes for states at which prompts are found again, within the cache's;
   * 0: an eighth of it. And behind how many tokens one is kept, a multiple of 64, beside those at the ends of
   * prompts and answers; 0: none. Both must be 0 for other models. */
  uint64_t state_snapshots;
  int64_t snapshot_tokens;
  /* Of models with a latent (MLA): NULL or "absorbed", one formula for every row; or "expanded", where
   * prompts make keys and values of every head, which is faster where steps are long. A position's prefill
   * then differs from its decode by roundings, and an answer that comes again in a prompt is computed once
   * more. "expanded" is refused for other models. */
  const char* mla;
} oar_model_options;

/* Sets the defaults; `size` is sizeof(oar_model_options), by which the library knows the caller's header. */
OAR_API oar_status oar_model_options_init(oar_model_options* options, size_t size);

/* Loads a model: a folder in the Hugging Face layout; a .gguf, .safetensors or llama2.c .bin file; a
 * downloaded model by its name "org/name"; or "demo", which comes with Oar. `options` may be NULL. Returns
 * when the model can be asked. On failure *model is 0. Owns threads and memory until oar_model_close().
 * Models that want more threads together than there are CPUs share theirs, in turns of equal time. */
OAR_API oar_status oar_model_load(const char* path, const oar_model_options* options, oar_model* model);

/* Cancels the model's generations, tells their callbacks so, and gives threads and memory back when the last
 * call that uses the model has returned. Generations stay valid handles, to be closed by their owners. Not
 * from a callback (OAR_FAILED_PRECONDITION). */
OAR_API oar_status oar_model_close(oar_model model);

/* No new generations; returns when those there are have finished, or cancels them when `timeout_ms` has
 * passed (OAR_DEADLINE_EXCEEDED). The model remains closed to new work. */
OAR_API oar_status oar_model_drain(oar_model model, int64_t timeout_ms);

typedef struct oar_model_info {
  int64_t max_context; /* tokens of one sequence, prompt and answer */
  uint64_t parameters;
  uint64_t weight_bytes, kv_bytes, scratch_bytes;
  uint64_t kv_bytes_per_token;
  int32_t vocab_size, layers, threads, page_tokens;
  int32_t bos_id, eos_id; /* -1: the tokenizer has none */
  double load_seconds;
} oar_model_info;

/* `size` is sizeof(oar_model_info). */
OAR_API oar_status oar_model_get_info(oar_model model, oar_model_info* info, size_t size);

/* A snapshot; counters only grow. */
typedef struct oar_model_stats {
  int64_t ready; /* 1: takes requests and makes progress */
  int64_t running, waiting;
  int64_t blocks_total, blocks_used, blocks_cached; /* of the KV cache */
  uint64_t steps, prompt_tokens, generation_tokens, preemptions;
  uint64_t prefix_queries, prefix_hits; /* tokens looked up in and found in the prefix cache */
  double step_seconds;                  /* sum over steps */
  uint64_t accepted_prediction_tokens, rejected_prediction_tokens; /* verified drafts of speculation */
} oar_model_stats;

/* `size` is sizeof(oar_model_stats). */
OAR_API oar_status oar_model_get_stats(oar_model model, oar_model_stats* stats, size_t size);

/* Facts for people as a JSON object: name, path, architecture, weights, kv, isa, ... Into `text` as described
 * at oar_detokenize(). */
OAR_API oar_status oar_model_describe(oar_model model, char* text, size_t capacity, size_t* length);

/* ---- Adapters ----------------------------------------------------------------------------------------- */

/* Loads an adapter (LoRA) into a free slot, where generations choose it by oar_sampling.lora: `lora_path` is
 * a folder with adapter_config.json and adapter_model.safetensors, as PEFT saves it. Blocks until it can be
 * chosen; what runs goes on. OAR_FAILED_PRECONDITION: the model was loaded with max_loras 0.
 * OAR_ALREADY_EXISTS: one has this name. OAR_RESOURCE_EXHAUSTED: every slot is held; the message has the
 * names. OAR_NOT_FOUND: no such folder. OAR_INVALID_ARGUMENT or OAR_UNIMPLEMENTED: it does not fit the model;
 * the message says which key or tensor. After an error the adapters are as before. */
OAR_API oar_status oar_model_load_lora(oar_model model, const char* lora_name, const char* lora_path);

/* No new generation can choose it. Those that have it end with the text they would have had; the slot is free
 * after the last of them. OAR_NOT_FOUND lists the names there are. */
OAR_API oar_status oar_model_unload_lora(oar_model model, const char* lora_name);

/* The loaded adapters by name, a JSON array of {"name", "path", "rank", "base"}: `base` is the model that it
 * says it was trained on, maybe "". Empty for a model without slots. Into `text` as at oar_detokenize(). */
OAR_API oar_status oar_model_list_loras(oar_model model, char* text, size_t capacity, size_t* length);

/* ---- Text --------------------------------------------------------------------------------------------- */

/* Text to token ids. `length` is in bytes; SIZE_MAX: up to the zero byte. `add_special` adds what the model
 * expects around a text (a beginning-of-sequence token, say). *count is how many ids there are; they are
 * written when `capacity` holds them all, and OAR_OUT_OF_RANGE is returned when it does not. With `ids` NULL
 * and capacity 0 the call only counts. */
OAR_API oar_status oar_tokenize(oar_model model, const char* text, size_t length, int add_special,
                                int32_t* ids, size_t capacity, size_t* count);

/* Token ids to text, well-formed UTF-8. *length is in bytes, without the zero byte that is written behind the
 * text; `capacity` must hold both, or OAR_OUT_OF_RANGE is returned. With `text` NULL and capacity 0 the call
 * only measures. */
OAR_API oar_status oar_detokenize(oar_model model, const int32_t* ids, size_t count, int skip_special,
                                  char* text, size_t capacity, size_t* length);

/* The prompt that the model's chat template makes of a conversation. `messages` is a JSON array of {"role",
 * "content"} objects as in OpenAI's interface, `tools` NULL or a JSON array of tools. Into `text` as at
 * oar_detokenize(). Tokenize the result with add_special 0: the template has written the special tokens.
 * Control tokens in what users wrote count then; oar_generate_chat() leaves them text unless the model's
 * options have allow_special_in_text. */
OAR_API oar_status oar_chat_prompt(oar_model model, const char* messages, const char* tools, char* text,
                                   size_t capacity, size_t* length);

/* ---- Generation --------------------------------------------------------------------------------------- */

typedef enum oar_finish {
  OAR_FINISH_NONE = 0, /* more is to come */
  OAR_FINISH_STOP = 1, /* the model's end token, a stop token or a stop string */
  OAR_FINISH_LENGTH = 2,
  OAR_FINISH_CANCELLED = 3,
  OAR_FINISH_DEADLINE = 4,
  OAR_FINISH_ERROR = 5,     /* `status` and `message` of the event say why */
  OAR_FINISH_TOOL_CALLS = 6 /* as STOP, of an answer to oar_generate_conversation() that calls tools */
} oar_finish;

/* What the text of every choice has to be. */
typedef enum oar_constraint {
  OAR_CONSTRAINT_NONE = 0,
  OAR_CONSTRAINT_JSON_OBJECT = 1,   /* any JSON object; `constraint` is not read */
  OAR_CONSTRAINT_JSON_SCHEMA = 2,   /* `constraint`: a JSON Schema */
  OAR_CONSTRAINT_REGEX = 3,         /* a pattern of all of the text */
  OAR_CONSTRAINT_GRAMMAR = 4,       /* a grammar in GBNF */
  OAR_CONSTRAINT_CHOICE = 5,        /* a JSON array of texts, one of which it is */
  OAR_CONSTRAINT_STRUCTURAL_TAG = 6 /* JSON, as vLLM and SGLang write it */
} oar_constraint;

/* Fill with oar_sampling_init(): a negative number then means the model's default (generation_config.json),
 * and where it has none, the value in brackets. Applied in the order bias, penalties, temperature, top_k,
 * top_p, min_p. */
typedef struct oar_sampling {
  uint32_t struct_size;     /* sizeof(oar_sampling), set by the init function */
  float temperature;        /* >= 0; 0 always takes the likeliest token [1] */
  float top_p;              /* (0, 1] [1] */
  float min_p;              /* [0, 1] [0] */
  int32_t top_k;            /* 0: all [0] */
  float repetition_penalty; /* > 0 [1] */
  float presence_penalty;   /* [-2, 2], no default of the model */
  float frequency_penalty;  /* [-2, 2], no default of the model */
  int64_t max_tokens;       /* >= 0; negative: what the context holds */
  int64_t min_tokens;       /* no end before this many */
  int32_t n;                /* choices [1] */
  int32_t has_seed;         /* 1: `seed` counts; the same seed gives the same tokens */
  uint64_t seed;
  int32_t ignore_eos;          /* 1: the model's end tokens do not stop */
  int32_t logprobs;            /* 1: events carry the log-probability of each token */
  int32_t keep_special_tokens; /* 1: special tokens appear in the text */
  int32_t include_stop;        /* 1: the stop string is part of the text */
  int64_t timeout_ms;          /* > 0: the generation ends then with OAR_FINISH_DEADLINE */
  const char* const* stop;     /* stop strings, stop_count of them */
  size_t stop_count;
  const int32_t* stop_tokens; /* stop token ids, stop_token_count of them */
  size_t stop_token_count;
  const int32_t* bias_tokens; /* bias_count ids and what is added to their logits */
  const float* bias_values;
  size_t bias_count;
  const char* cache_salt;  /* prefix-cache entries are shared only between equal salts; NULL: "" */
  int32_t constraint_kind; /* an oar_constraint */
  const char* constraint;  /* what that kind reads */
  const char* lora;        /* name of a loaded adapter (oar_model_load_lora()); NULL: the model without one */
} oar_sampling;

/* Sets the defaults; `size` is sizeof(oar_sampling). */
OAR_API oar_status oar_sampling_init(oar_sampling* sampling, size_t size);

/* A piece of one tool call. The first of a call has its name and id; arguments are JSON text, to be appended
 * to what came before. This structure does not grow. */
typedef struct oar_tool_call {
  int32_t index;    /* which call of the choice */
  int32_t reserved; /* 0 */
  const char* id;   /* "" but for a call's first piece, as is the name */
  const char* name;
  const char* arguments; /* never NULL */
} oar_tool_call;

/* A piece of an answer. Its text is final: never half a character, never a part of a stop string; it may be
 * empty while such is held back. Exactly one event per choice has finish != OAR_FINISH_NONE, its last. The
 * counters are meaningful on that one. */
typedef struct oar_event {
  uint32_t struct_size; /* of the library's oar_event: fields beyond it are not there */
  int32_t index;        /* choice, [0, n) */
  const char* text;     /* text_length bytes and a zero byte; never NULL */
  size_t text_length;
  const int32_t* tokens; /* token_count ids whose text is here or held back */
  const float* logprobs; /* token_count, or NULL when not asked for */
  size_t token_count;
  oar_finish finish;
  oar_status status;   /* OAR_OK unless finish is OAR_FINISH_ERROR or OAR_FINISH_DEADLINE */
  const char* message; /* never NULL */
  int64_t prompt_tokens, cached_tokens, completion_tokens;
  double seconds_to_first_token, seconds; /* since the submission */
  const char* reasoning;                  /* of oar_generate_conversation(); never NULL */
  size_t reasoning_length;
  const oar_tool_call* tool_calls; /* tool_call_count pieces, likewise */
  size_t tool_call_count;
  int64_t accepted_prediction_tokens; /* of completion_tokens, drafted by speculation */
  int64_t rejected_prediction_tokens; /* drafts that were wrong; no part of completion_tokens */
} oar_event;

/* Called on a thread of the model, one call at a time per model, in order per choice. The event lives during
 * the call. Return 0 to go on; anything else cancels the generation. A callback that takes long delays other
 * callbacks of the model, never its computing. It may call every function but oar_model_load(),
 * oar_model_close(), oar_shutdown() and oar_generation_wait(), and may close its own generation. */
typedef int (*oar_event_callback)(const oar_event* event, void* user);

/* Submit a generation and return at once: of a text (special tokens added as the model expects), of token
 * ids, of a conversation (JSON, as at oar_chat_prompt()). `sampling` may be NULL. With `callback` NULL, take
 * the events with oar_generation_next(). On failure *generation is 0. To be closed with
 * oar_generation_close(), also when it has ended. */
OAR_API oar_status oar_generate_text(oar_model model, const char* prompt, const oar_sampling* sampling,
                                     oar_event_callback callback, void* user, oar_generation* generation);
OAR_API oar_status oar_generate_tokens(oar_model model, const int32_t* ids, size_t count,
                                       const oar_sampling* sampling, oar_event_callback callback, void* user,
                                       oar_generation* generation);
OAR_API oar_status oar_generate_chat(oar_model model, const char* messages, const oar_sampling* sampling,
                                     oar_event_callback callback, void* user, oar_generation* generation);

/* Fill with oar_chat_options_init(), then change what should differ. */
typedef struct oar_chat_options {
  uint32_t struct_size;        /* sizeof(oar_chat_options), set by the init function */
  int32_t parallel_tool_calls; /* 0: the answer ends with its first call [1] */
  const char* tools;           /* NULL: none; a JSON array of tools as in OpenAI's interface */
  const char* tool_choice;     /* NULL: the model decides; JSON as there: "\"required\"" or an object */
  int32_t inline_reasoning;    /* 1: reasoning stays part of the text */
  int32_t reserved;            /* 0 */
  int64_t thinking_budget;     /* tokens of reasoning, after which it is closed; -1: no bound [-1] */
} oar_chat_options;

/* Sets the defaults; `size` is sizeof(oar_chat_options). */
OAR_API oar_status oar_chat_options_init(oar_chat_options* options, size_t size);

/* As oar_generate_chat(), with the answer taken apart: events carry reasoning and tool calls beside text,
 * where the model's chat template tells how it writes them. Messages may have tool_calls, and the role tool.
 * With tools and a template that tells of none, OAR_INVALID_ARGUMENT. `options` may be NULL. */
OAR_API oar_status oar_generate_conversation(oar_model model, const char* messages,
                                             const oar_chat_options* options, const oar_sampling* sampling,
                                             oar_event_callback callback, void* user,
                                             oar_generation* generation);

/* The next event of a generation without a callback. *event is NULL with OAR_OK when every choice has ended,
 * and with OAR_DEADLINE_EXCEEDED when none came within `timeout_ms` (0: do not wait, negative: without
 * limit). The event lives until the next oar_generation_next() on this thread. */
OAR_API oar_status oar_generation_next(oar_generation generation, int64_t timeout_ms,
                                       const oar_event** event);

/* Waits until a generation with a callback has delivered its last event and the callback has returned.
 * OAR_DEADLINE_EXCEEDED when that took longer than `timeout_ms` (negative: no limit). Not from a callback. */
OAR_API oar_status oar_generation_wait(oar_generation generation, int64_t timeout_ms);

/* Asks every open choice to end; each still delivers its last event, with OAR_FINISH_CANCELLED. No error when
 * it has ended already. */
OAR_API oar_status oar_generation_cancel(oar_generation generation);

/* Cancels what is left and forgets the handle. When it returns, the callback is not running and will not be
 * called again; called from a callback, that holds once this callback has returned. */
OAR_API oar_status oar_generation_close(oar_generation generation);

/* ---- Predictors --------------------------------------------------------------------------------------- */

/* Runs a tensor graph: an ONNX or Paddle file. */
typedef uint64_t oar_predictor;
typedef uint64_t oar_outputs;

typedef enum oar_dtype {
  OAR_DTYPE_NONE = 0, /* the file does not say */
  OAR_F32 = 1,
  OAR_F64 = 2,
  OAR_F16 = 3,
  OAR_BF16 = 4,
  OAR_BOOL = 5, /* one byte, 0 or 1 */
  OAR_I8 = 6,
  OAR_U8 = 7,
  OAR_I16 = 8,
  OAR_U16 = 9,
  OAR_I32 = 10,
  OAR_U32 = 11,
  OAR_I64 = 12,
  OAR_U64 = 13
} oar_dtype;

enum { OAR_MAX_RANK = 8 };

/* A dense row-major tensor in host memory. */
typedef struct oar_tensor {
  int32_t dtype;               /* an oar_dtype */
  int32_t rank;                /* 0 to OAR_MAX_RANK; 0 is a scalar */
  int64_t shape[OAR_MAX_RANK]; /* the first `rank` count */
  const void* data;
  size_t bytes; /* elements times the size of one */
} oar_tensor;

/* An input or output as the file declares it. */
typedef struct oar_tensor_info {
  const char* name;            /* lives as long as the predictor */
  int32_t dtype;               /* an oar_dtype */
  int32_t rank;                /* -1: any */
  int64_t shape[OAR_MAX_RANK]; /* -1: any extent */
} oar_tensor_info;

/* Loads a model file. `threads`: 0 for all usable CPUs, 1 for the caller's alone. */
OAR_API oar_status oar_predictor_load(const char* path, int32_t threads, oar_predictor* predictor);

/* Fill with oar_predictor_options_init(), then change what should differ. */
typedef struct oar_predictor_options {
  uint32_t struct_size;        /* sizeof(oar_predictor_options), set by the init function */
  int32_t threads;             /* as for oar_predictor_load() */
  const char* precision;       /* of convolutions and layers of f32; NULL: f32; bf16, f16, tf32, int8 */
  const char* cache_dir;       /* keeps the prepared model for the next load, 64 GiB in all; NULL: nowhere */
  const char* params;          /* Paddle: the file with the parameters; NULL: found beside the program */
  const char* disabled_passes; /* names of graph passes with commas between them, or "all"; NULL: none */
  const char* device;          /* NULL: the CPU; or a plug-in's, as in oar_model_options */
  oar_log_callback log;        /* NULL: events are dropped: what of a model no device has kernels for, ... */
  void* log_user;
  const char* weights; /* of an encoder, as in oar_model_options; NULL: as in the file */
} oar_predictor_options;

/* Sets the defaults; `size` is sizeof(oar_predictor_options). */
OAR_API oar_status oar_predictor_options_init(oar_predictor_options* options, size_t size);
/* oar_predictor_load() with more to choose. `options` may be NULL. */
OAR_API oar_status oar_predictor_open(const char* path, const oar_predictor_options* options,
                                      oar_predictor* predictor);

/* The same of a model in memory: ONNX, or a Paddle program with its parameters (NULL and 0 where it has
 * none). The bytes are copied. `options->params` and `options->cache_dir` must be NULL. */
OAR_API oar_status oar_predictor_open_memory(const void* model, size_t model_bytes, const void* params,
                                             size_t params_bytes, const oar_predictor_options* options,
                                             oar_predictor* predictor);

/* Another handle on the same weights and threads; costs next to nothing. A pool of predictors is so many
 * clones, though one predictor may also be run by many threads at once. */
OAR_API oar_status oar_predictor_clone(oar_predictor predictor, oar_predictor* clone);

/* Runs under way finish; the memory goes with the last clone and the last of these. */
OAR_API oar_status oar_predictor_close(oar_predictor predictor);

OAR_API oar_status oar_predictor_counts(oar_predictor predictor, size_t* inputs, size_t* outputs);
/* `size` is sizeof(oar_tensor_info). OAR_OUT_OF_RANGE when there is no such input or output. */
OAR_API oar_status oar_predictor_input(oar_predictor predictor, size_t index, oar_tensor_info* info,
                                       size_t size);
OAR_API oar_status oar_predictor_output(oar_predictor predictor, size_t index, oar_tensor_info* info,
                                        size_t size);

/* Runs with one tensor per input, in the model's order. Their memory is read where it lies, without a copy,
 * and must not change during the call; the call keeps no reference to it. Blocks until done. The results are
 * a handle of their own, to be closed. */
OAR_API oar_status oar_predictor_run(oar_predictor predictor, const oar_tensor* inputs, size_t count,
                                     oar_outputs* outputs);

/* The same with inputs by name: names[i] is whose tensor inputs[i] is, in any order, each once. */
OAR_API oar_status oar_predictor_run_named(oar_predictor predictor, const char* const* names,
                                           const oar_tensor* inputs, size_t count, oar_outputs* outputs);

/* oar_predictor_run() with the results in the caller's memory: results[i].data points to results[i].bytes
 * bytes that are written, though the member is const; it must not overlap an input. On return dtype, rank,
 * shape and bytes are the result's. OAR_OUT_OF_RANGE when a result is larger; `bytes` of each says then what
 * is needed, and nothing has been written. */
OAR_API oar_status oar_predictor_run_into(oar_predictor predictor, const oar_tensor* inputs, size_t count,
                                          oar_tensor* results, size_t result_count);

/* Ends the runs of this handle that are under way, from any thread: each returns OAR_CANCELLED once the step
 * that it is in is over. Runs begun later, and those of clones, go on. */
OAR_API oar_status oar_predictor_cancel(oar_predictor predictor);
/* Runs of this handle that begin from now on return OAR_DEADLINE_EXCEEDED when a step ends after `timeout_ms`
 * (0: no limit). A clone begins without a limit. */
OAR_API oar_status oar_predictor_set_timeout(oar_predictor predictor, int64_t timeout_ms);

/* The bytes that a run takes beside the weights, before any run: its intermediate values and its results. Of
 * `inputs` only `shape` and `rank` are read. OAR_FAILED_PRECONDITION where sizes depend on values. */
OAR_API oar_status oar_predictor_memory(oar_predictor predictor, const oar_tensor* inputs, size_t count,
                                        uint64_t* bytes);
/* Gives back the memory that this handle keeps between runs; `freed` (its bytes) may be null. */
OAR_API oar_status oar_predictor_shrink(oar_predictor predictor, uint64_t* freed);

/* A result: tensor->data points into memory that lives until oar_outputs_close(). */
OAR_API oar_status oar_outputs_get(oar_outputs outputs, size_t index, oar_tensor* tensor);
OAR_API oar_status oar_outputs_close(oar_outputs outputs);

/* ---- Encoders ----------------------------------------------------------------------------------------- */

/* Turns texts into vectors, and pairs of texts into scores: BERT, RoBERTa, ERNIE, MiniLM and their like. */
typedef uint64_t oar_encoder;

typedef enum oar_pooling {
  OAR_POOLING_MODEL = 0, /* as the model's files say (1_Pooling/config.json); the mean where they do not */
  OAR_POOLING_MEAN = 1,
  OAR_POOLING_FIRST = 2, /* the vector of the first token, often called CLS */
  OAR_POOLING_LAST = 3,
  OAR_POOLING_MAX = 4,
  OAR_POOLING_MEAN_SQRT = 5,    /* the sum over the square root of the number of tokens */
  OAR_POOLING_WEIGHTED_MEAN = 6 /* token n of 1, 2, ... weighs n */
} oar_pooling;

/* How a vector is made of the vectors of a text's tokens. Fill with oar_embed_options_init(). */
typedef struct oar_embed_options {
  uint32_t struct_size; /* sizeof(oar_embed_options), set by the init function */
  int32_t pooling;      /* an oar_pooling; a graph that pools by itself takes OAR_POOLING_MODEL alone */
  int32_t normalize;    /* 1: to unit length; 0: not; negative: as the model's files say */
  int32_t reserved;     /* 0 */
  int64_t
      max_tokens; /* longer texts are cut to so many; negative: to what the model takes; 0: OUT_OF_RANGE */
  int64_t dimensions; /* > 0: the first so many numbers, made a unit vector again; 0: all */
} oar_embed_options;

/* Sets the defaults; `size` is sizeof(oar_embed_options). */
OAR_API oar_status oar_embed_options_init(oar_embed_options* options, size_t size);

/* Loads a folder with a tokenizer and either config.json and .safetensors, an ONNX or a Paddle model, as
 * Hugging Face and sentence-transformers write them. `threads`: 0 for all usable CPUs, 1 for the
 * caller's alone. */
OAR_API oar_status oar_encoder_load(const char* path, int32_t threads, oar_encoder* encoder);
/* The same with more to choose. `options` may be NULL; its `params` must be. `weights` (int8, int4, fp8, ...)
 * and `precision` mean the same of safetensors and of graphs that run over packed rows, as exported BERTs do;
 * what is quantized at load is kept in `cache_dir` (NULL: the default folder). */
OAR_API oar_status oar_encoder_open(const char* path, const oar_predictor_options* options,
                                    oar_encoder* encoder);

/* Calls under way finish; the memory goes with the last of them. */
OAR_API oar_status oar_encoder_close(oar_encoder encoder);

typedef struct oar_encoder_info {
  int64_t max_tokens; /* of one text, special tokens included */
  int64_t dimensions; /* of a vector with the model's own pooling; 0: known only from an answer */
  int32_t vocab_size;
  int32_t embeds;     /* 1: oar_embed() has vectors */
  int32_t scores;     /* 1: oar_score() has a classifier of one or two labels */
  int32_t normalizes; /* 1: vectors have unit length unless the options say otherwise */
} oar_encoder_info;

/* `size` is sizeof(oar_encoder_info). */
OAR_API oar_status oar_encoder_get_info(oar_encoder encoder, oar_encoder_info* info, size_t size);

/* The vectors of `count` texts (at least 1, none empty), which run together in batches of like length.
 * `options` may be NULL. Blocks until done. The results, a handle to be closed with oar_outputs_close(), are
 * two tensors: 0, f32 [count, dimensions]; 1, i64 [count], the tokens of each text. A text's vector does not
 * depend on its company, up to rounding. */
OAR_API oar_status oar_embed(oar_encoder encoder, const char* const* texts, size_t count,
                             const oar_embed_options* options, oar_outputs* vectors);

/* How well each of `count` documents answers the query, by a model that was trained to say so (a cross
 * encoder): documents are cut to what the model takes beside the query. The results: 0, f32 [count], larger
 * is better; 1, i64 [count], the tokens of each pair. */
OAR_API oar_status oar_score(oar_encoder encoder, const char* query, const char* const* documents,
                             size_t count, oar_outputs* scores);

/* ---- ops of your own
 * --------------------------------------------------------------------------------------- A model file may
 * hold ops that Oar does not have: register them before the model is loaded. They run on the CPU, beside a
 * device on copies of their operands. */

/* One node, while a function of its op is called. */
typedef struct oar_op_call oar_op_call;

/* Attributes of the node. NOT_FOUND where it has none of that name, INVALID_ARGUMENT where it is of another
 * type. Strings and lists live as long as the call. */
OAR_API oar_status oar_op_int(const oar_op_call* call, const char* name, int64_t* value);
OAR_API oar_status oar_op_float(const oar_op_call* call, const char* name, double* value);
OAR_API oar_status oar_op_string(const oar_op_call* call, const char* name, const char** value);
OAR_API oar_status oar_op_ints(const oar_op_call* call, const char* name, const int64_t** values,
                               size_t* count);
OAR_API oar_status oar_op_floats(const oar_op_call* call, const char* name, const double** values,
                                 size_t* count);
/* Keeps the words for whoever runs the model, and returns INVALID_ARGUMENT: `return oar_op_fail(call,
 * "...")`.
 */
OAR_API oar_status oar_op_fail(oar_op_call* call, const char* message);

/* Anything but OAR_OK ends the run with that status. An operand that the node leaves out has dtype
 * OAR_DTYPE_NONE. Any thread, several at once. No function may run or load a model. */
typedef oar_status (*oar_op_function)(oar_op_call* call, const oar_tensor* inputs, size_t num_inputs,
                                      oar_tensor* outputs, size_t num_outputs, void* user);

/* Fill with oar_op_init(). */
typedef struct oar_op {
  uint32_t struct_size;    /* sizeof(oar_op), set by the init function */
  int32_t reserved;        /* 0 */
  const char* name;        /* the op's type in the file */
  const char* domain;      /* ONNX: as the file has it; NULL or "": ai.onnx. Paddle's ops: "paddle" */
  oar_op_function shape;   /* sets dtype, rank and shape of each output; every `data` is NULL */
  oar_op_function compute; /* writes the outputs' `data`, which are aligned to 64 bytes */
  void* user;              /* handed to both; must live as long as the process */
} oar_op;

OAR_API oar_status oar_op_init(oar_op* op, size_t size);
/* For models loaded from now on in this process, instead of an op of that name that Oar has. ALREADY_EXISTS
 * for the same name and domain twice; there is no way back. */
OAR_API oar_status oar_register_op(const oar_op* op);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* OAR_H */
