// The byte tokenizer, and tokens that mark a gap.
#pragma once

#include <memory>

#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace oar_test {

// 260 to 262 mark what is before a gap, behind it, and the gap.
inline std::shared_ptr<const oar::Tokenizer> gap_tokenizer() {
  oar::json::value made = parse(byte_tokenizer_json(true));
  int id = 260;
  for (const char* mark : {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}) {
    oar::json::value token = made.at("added_tokens").at(0);
    token.as_object()["id"] = id++;
    token.as_object()["content"] = mark;
    made.as_object()["added_tokens"].as_array().push_back(token);
  }
  auto tokenizer = oar::tokenizer_from_json(serialize(made));
  REQUIRE_OK(tokenizer);
  return *tokenizer;
}

}  // namespace oar_test
