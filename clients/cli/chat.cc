#include "clients/cli/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/base/format.h"
#include "engine/runtime/text_stream.h"

namespace oar::cli {

void Chat::reset() {
  said_.clear();
  seen_from_ = 0;
}

json::array Chat::messages(size_t from) const {
  json::array out;
  if (!system_.empty()) out.push_back({{"role", "system"}, {"content", system_}});
  for (size_t i = from; i < said_.size(); ++i)
    out.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", said_[i]}});
  return out;
}

Result<std::vector<int32_t>> Chat::prompt() {
  ChatTemplateOptions o;
  o.bos_token = model_.bos_token();
  o.eos_token = model_.eos_token();
  o.allow_special_in_text = model_.allows_special_in_text();
  const int64_t context = model_.info().max_context;
  // A quarter of the context stays free for the answer, where it may be that long. Turns leave by the half,
  // so that the beginning of the prompt, and with it the prefix cache, does not change every turn.
  int64_t limit = context - std::min(sampling_.max_tokens, context / 4);
  const size_t before = seen_from_;
  while (true) {
    OAR_ASSIGN(const ChatPrompt prompt, model_.chat_template().render(messages(seen_from_), nullptr, o));
    // The template has written the special tokens.
    OAR_ASSIGN(auto ids,
               model_.tokenizer()->encode(prompt.text, {.add_special_tokens = false, .plain = prompt.user}));
    const bool last_alone = seen_from_ + 1 >= said_.size();
    if (static_cast<int64_t>(ids.size()) > limit && !last_alone) {
      limit = context / 2;
      seen_from_ += 2;
      continue;
    }
    if (const size_t turns = (seen_from_ - before) / 2; turns > 0)
      std::fprintf(
          stderr,
          "[the conversation outgrew the context of %lld tokens: its oldest %zu %s out from here on]\n",
          static_cast<long long>(context), turns, turns == 1 ? "turn is left" : "turns are left");
    return ids;
  }
}

// Reasoning is not the answer: it goes to the terminal, dimmed there, and never into a pipe.
void Chat::show_reasoning(const std::string& text, bool over) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (!text.empty()) {
    if (!std::exchange(reasoning_, true) && terminal) std::fputs("\x1b[2m", stderr);
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
  if (over && std::exchange(reasoning_, false)) std::fputs(terminal ? "\x1b[0m\n\n" : "\n\n", stderr);
}

Status Chat::say(const std::string& text) {
  said_.push_back(text);
  auto run = [&]() -> Status {
    Request request;
    request.id = cat("run-", turns_++);
    OAR_ASSIGN(request.prompt, prompt());
    request.sampling = params();
    request.stop.max_tokens = sampling_.max_tokens;
    ReplyRequest asked;
    OAR_ASSIGN(asked.answer, constraint_of(sampling_));
    OAR_ASSIGN(ReplyPlan plan, plan_reply(model_.reply_model(), asked, request.prompt));
    request.constraint = std::move(plan.constraint);
    request.constraint_field = "the constraint";
    request.adapter = adapter_;
    request.stop.stop_token_ids = std::move(plan.end_tokens);
    TextStreamOptions stream_options;
    stream_options.stop = sampling_.stop;
    stream_options.reply = std::move(plan.format);
    auto stream = TextStream::create(model_.tokenizer(), std::move(stream_options), 1);
    OAR_RETURN_IF_ERROR(stream->start(model_.engine(), std::move(request)));
    std::string answer;
    Status status;
    while (!stream->done()) {
      if (interrupted_.exchange(false)) stream->cancel();
      const auto event = stream->next(std::chrono::milliseconds(50));
      if (!event) continue;
      show_reasoning(event->reasoning, !event->text.empty() || event->finish != FinishReason::kNone);
      answer += event->text;
      std::fwrite(event->text.data(), 1, event->text.size(), stdout);
      if (std::fflush(stdout) != 0) stream->cancel(), status = unavailable("standard output is closed");
      if (event->finish == FinishReason::kError) status = event->status;
      if (event->finish == FinishReason::kCancelled) std::fprintf(stderr, " [stopped]");
      if (event->finish == FinishReason::kLength)
        std::fprintf(stderr, event->stats.completion_tokens < sampling_.max_tokens
                                 ? " [cut: the context is full]"
                                 : " [cut at the token limit]");
    }
    std::printf("\n");
    std::fflush(stdout);
    OAR_RETURN_IF_ERROR(status);
    said_.push_back(std::move(answer));
    return ok_status();
  };
  const Status status = run();
  if (!status.ok()) said_.pop_back();
  return status;
}

Status Chat::save(const std::string& path) const {
  std::string text;
  if (path.ends_with(".json")) {
    text = json::serialize(json::object{{"model", model_.info().name}, {"messages", messages(0)}}) + "\n";
  } else {
    for (const json::value& m : messages(0))
      text += cat(std::string_view(m.at("role").as_string()), ":\n",
                  std::string_view(m.at("content").as_string()), "\n\n");
  }
  std::FILE* file = std::fopen(path.c_str(), "wx");
  if (file == nullptr)
    return unavailable(cat("cannot create ", path, ": ", std::strerror(errno), "; give another name"));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written ? ok_status() : unavailable(cat("cannot write ", path));
}

}  // namespace oar::cli
