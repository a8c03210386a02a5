// Each step is what the Hugging Face decoder of that name does to one token.
#include "engine/text/decoder_chain.h"

#include <algorithm>

#include "engine/text/byte_alphabet.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t copied = 0;
  for (size_t hit; (hit = text.find(from, copied)) != std::string_view::npos; copied = hit + from.size()) {
    out += text.substr(copied, hit - copied);
    out += to;
  }
  out += text.substr(copied);
  return out;
}

}  // namespace

DecoderChain::Step DecoderChain::byte_level() {
  return [](std::string t, bool) {
    auto bytes = from_byte_alphabet(t);
    return bytes ? std::move(*bytes) : t;
  };
}

DecoderChain::Step DecoderChain::byte_fallback() {
  return [](std::string t, bool) {
    const auto byte = byte_token_byte(t);
    return byte ? std::string(1, static_cast<char>(*byte)) : t;
  };
}

DecoderChain::Step DecoderChain::replace(std::string from, std::string to) {
  return
      [from = std::move(from), to = std::move(to)](std::string t, bool) { return replace_all(t, from, to); };
}

DecoderChain::Step DecoderChain::strip(char32_t content, size_t left, size_t right) {
  return [content = to_utf8(content), left, right](std::string t, bool) {
    std::string_view s = t;
    for (size_t i = 0; i < left && s.starts_with(content); ++i) s.remove_prefix(content.size());
    for (size_t i = 0; i < right && s.ends_with(content); ++i) s.remove_suffix(content.size());
    return std::string(s);
  };
}

DecoderChain::Step DecoderChain::metaspace(std::string replacement, bool drop_at_start) {
  return [replacement = std::move(replacement), drop_at_start](std::string t, bool first) {
    return replace_all(t, replacement, first && drop_at_start ? "" : " ");
  };
}

DecoderChain::Step DecoderChain::word_piece(std::string prefix, bool cleanup) {
  return [prefix = std::move(prefix), cleanup](std::string t, bool first) {
    if (!first) t = t.starts_with(prefix) ? t.substr(prefix.size()) : " " + t;
    if (!cleanup) return t;
    constexpr std::pair<std::string_view, std::string_view> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) t = replace_all(t, from, to);
    return t;
  };
}

DecoderChain::Step DecoderChain::join_with_spaces() {
  return [](std::string t, bool first) { return first ? t : " " + t; };
}

Decoder::Token DecoderChain::describe(std::string_view text, bool special) const {
  Decoder::Token token;
  token.known = true;
  token.special = special;
  std::string start(text);
  if (!end_of_word.empty()) {
    if (start.ends_with(end_of_word)) {
      token.ends_word = true;
      start.resize(start.size() - end_of_word.size());
    }
    start = replace_all(start, end_of_word, " ");
  }
  token.bytes = token.first = std::move(start);
  for (const Step& step : steps_) {
    token.bytes = step(std::move(token.bytes), false);
    token.first = step(std::move(token.first), true);
  }
  return token;
}

void build_token_decoder(TokenizerParts& parts, const DecoderChain& chain) {
  const int32_t known = parts.vocabulary.size();
  parts.decoder = Decoder::build(
      parts.added.empty() ? known : std::max(known, parts.added.back().id + 1),
      [&](int32_t id) {
        if (const AddedToken* t = parts.find_added(id)) {
          Decoder::Token token;
          token.known = true;
          token.special = t->special;
          token.bytes = token.first = t->content;
          return token;
        }
        const std::string_view text = id < known ? parts.vocabulary.text(id) : std::string_view{};
        return text.empty() ? Decoder::Token{} : chain.describe(text, false);
      },
      chain.rules);
}

void build_byte_level_decoder(TokenizerParts& parts) {
  DecoderChain chain;
  chain.add(DecoderChain::byte_level());
  build_token_decoder(parts, chain);
}

}  // namespace oar
