// Fuzz target: tokenizer files of all kinds, then a text through whatever was built. The first byte chooses
// the kind; the last 64 bytes are also the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/detokenizer.h"
#include "engine/text/split_pattern.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/target.h"

namespace {

void check(bool ok) {
  if (!ok) __builtin_trap();
}

void exercise(const oar::TokenizerPtr& tokenizer, std::string_view text) {
  for (const bool special : {true, false}) {
    const auto ids = tokenizer->encode(text, {.add_special_tokens = special, .parse_special = special});
    if (!ids.ok()) continue;
    oar::IncrementalDetokenizer stream(tokenizer, special);
    std::string streamed;
    for (const int32_t id : *ids) {
      check(id >= 0 && id < tokenizer->vocab_size());
      streamed += stream.push(id);
      check(oar::is_valid_utf8(streamed));
    }
    streamed += stream.finish();
    check(streamed == tokenizer->decode(*ids, special));
  }
}

}  // namespace

OAR_FUZZ_TARGET(tokenizer) {
  if (size < 2) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view body = all.substr(1);
  const std::string_view text = body.substr(body.size() - std::min<size_t>(body.size(), 64));
  switch (data[0] % 4) {
    case 0: {
      if (const auto t = oar::tokenizer_from_json(body); t.ok()) exercise(*t, text);
      break;
    }
    case 1: {
      if (const auto t = oar::tokenizer_from_sentencepiece(body); t.ok()) exercise(*t, text);
      break;
    }
    case 2: {
      if (const auto t = oar::tokenizer_from_llama2c(body, 3 + data[0] / 4); t.ok()) exercise(*t, text);
      break;
    }
    default: {  // a split pattern and a text
      const size_t cut = std::min(body.find('\n'), body.size());
      const auto pattern = oar::SplitPattern::compile(body.substr(0, cut));
      if (!pattern.ok()) break;
      const std::string subject = oar::repair_utf8(body.substr(cut));
      oar::SplitPattern::Scratch scratch;
      scratch.refill(subject.size());
      oar::SplitPattern::Match m;
      if (pattern->find(subject, 0, scratch, m) == oar::SplitPattern::Found::kMatch)
        check(m.begin <= m.end && m.end <= subject.size() &&
              oar::is_valid_utf8(subject.substr(m.begin, m.end - m.begin)));
    }
  }
  return 0;
}
