// The tokenizer of a checkpoint, whichever of the sources it brought.
#pragma once

#include <string>

#include "engine/loader/tokenizer_files.h"
#include "engine/text/tokenizer.h"

namespace oar {

// First of: tokenizer.json, vocab.json with merges.txt, vocab.txt, a GGUF vocabulary, a SentencePiece model,
// llama2.c's tokenizer.bin. `vocab_size` is the model's (llama2.c's file does not say its own). NOT_FOUND
// when there is none.
Result<TokenizerPtr> make_tokenizer(const TokenizerFiles& files, int64_t vocab_size);

// What takes the place of a chat template that is missing: ChatML behind the token that begins a text. Where
// the vocabulary has no "<|im_end|>" the token that ends a text ends each turn, so that answers have an end.
std::string default_chat_template(const Tokenizer& tokenizer);

}  // namespace oar
