// Parsing the stages of tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder. Private to the
// loader in tokenizer_json.cc. Every function takes the JSON value (null: the stage is absent) and answers
// with a message that names the field.
#pragma once

#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/added_tokens.h"
#include "engine/text/decoder_chain.h"
#include "engine/text/normalizer.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/tokenizer.h"

namespace oar::tokenizer_json {

// Typed access with defaults; `where` names the object in messages.
Result<std::string> string_field(const json::object& o, std::string_view key, std::string_view where);
// Like string_field(), but absent gives `fallback`.
Result<std::string> optional_string_field(const json::object& o, std::string_view key,
                                          std::string_view fallback, std::string_view where);
Result<bool> bool_field(const json::object& o, std::string_view key, bool fallback, std::string_view where);
Result<int64_t> int_field(const json::object& o, std::string_view key, int64_t fallback,
                          std::string_view where);
// Absent and null are the same.
const json::value* field(const json::object& o, std::string_view key);
Result<const json::object*> as_object(const json::value& v, std::string_view where);
Result<const json::array*> array_field(const json::object& o, std::string_view key, std::string_view where);

Result<NormalizerPtr> parse_normalizer(const json::value* v);  // null when absent

struct PreTokenizerParts {
  std::vector<PreTokenizerPtr> steps;
  bool ends_in_byte_alphabet =
      false;  // the last step is the byte alphabet, which a byte-level model replaces
};
Result<PreTokenizerParts> parse_pretokenizer(const json::value* v);

struct PostProcessor {
  std::vector<int32_t> prefix, suffix;
};
Result<PostProcessor> parse_post_processor(const json::value* v);

Result<DecoderChain> parse_decoder(const json::value* v);

// One of added_tokens, with its id.
Result<AddedToken> parse_added_token(const json::value& v);
// What tokenizer_config.json has as added_tokens_decoder, as added_tokens has it; empty when absent.
Result<json::array> listed_added_tokens(const json::object& config);

// A whole document, parsed; `tokenizer_config_json` as in tokenizer_from_json().
Result<TokenizerPtr> from_document(const json::object& root, std::string_view tokenizer_config_json);

}  // namespace oar::tokenizer_json
