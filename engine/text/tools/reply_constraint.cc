#include "engine/text/tools/reply_constraint.h"

#include <algorithm>

#include "engine/text/tools/markers.h"

namespace oar {
namespace {

struct Plan {
  TokenizerPtr tokenizer;
  std::string begin, end;           // of the reasoning
  std::vector<int32_t> end_tokens;  // how the closing marker is written
  int32_t begin_token = -1;         // the opening marker, where it is one token
  bool in_reasoning = false;        // from the first token on
  std::optional<int64_t> budget;
  std::shared_ptr<const Constraint> answer;
};

class Cursor final : public ConstraintCursor {
 public:
  explicit Cursor(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
    if (plan_->answer) answer_ = plan_->answer->start();
    if (plan_->in_reasoning) enter_reasoning();
  }

  bool advance(int32_t token) override {
    if (now_.phase == Phase::kAnswer) return advance_answer(token);
    const Place before = now_;
    switch (now_.phase) {
      case Phase::kStart:
        if (!start(token)) {  // no reasoning: this is the answer
          leave_reasoning();
          start_ = before;
          if (advance_answer(token)) return true;
          start_.reset();
          now_ = before;
          return false;
        }
        break;
      case Phase::kReasoning:
        ++now_.count;
        now_.tail += plan_->tokenizer->token_bytes(token);
        if (now_.tail.find(plan_->end) != std::string::npos) leave_reasoning();
        else shorten(now_.tail, plan_->end.size() - 1);
        break;
      case Phase::kForced:
        if (token != plan_->end_tokens[static_cast<size_t>(now_.count)]) return false;
        if (static_cast<size_t>(++now_.count) == plan_->end_tokens.size()) leave_reasoning();
        break;
      case Phase::kAnswer: break;
    }
    if (now_.phase == Phase::kReasoning && plan_->budget && now_.count >= *plan_->budget) {
      now_.phase = Phase::kForced;
      now_.count = 0;
    }
    before_.push_back(before);
    return true;
  }

  void rollback(int64_t count) override {
    const int64_t answered = std::min(count, answered_);
    if (answer_ && answered > 0) answer_->rollback(answered);
    answered_ -= answered;
    // The answer may have begun with its first token, which is gone.
    if (answered_ == 0 && start_) now_ = std::move(*std::exchange(start_, std::nullopt));
    for (count -= answered; count > 0; --count) {
      now_ = std::move(before_.back());
      before_.pop_back();
    }
  }

  void mask(std::span<uint32_t> bits) override {
    switch (now_.phase) {
      case Phase::kForced:
        std::fill(bits.begin(), bits.end(), 0u);
        return set(bits, plan_->end_tokens[static_cast<size_t>(now_.count)]);
      case Phase::kReasoning: return std::fill(bits.begin(), bits.end(), ~0u);
      case Phase::kStart:
      case Phase::kAnswer: break;
    }
    if (!answer_) return std::fill(bits.begin(), bits.end(), ~0u);
    answer_->mask(bits);
    if (now_.phase == Phase::kStart) set(bits, plan_->begin_token);
  }

  int32_t only() override {
    if (now_.phase == Phase::kForced) return plan_->end_tokens[static_cast<size_t>(now_.count)];
    return now_.phase == Phase::kAnswer && answer_ ? answer_->only() : -1;
  }

  bool may_end() const override {
    return now_.phase != Phase::kForced && (!answer_ || (now_.phase == Phase::kAnswer && answer_->may_end()));
  }
  bool must_end() const override { return now_.phase == Phase::kAnswer && answer_ && answer_->must_end(); }

  std::unique_ptr<ConstraintCursor> fork() const override {
    return std::unique_ptr<ConstraintCursor>(new Cursor(*this, answer_ ? answer_->fork() : nullptr));
  }

 private:
  enum class Phase : uint8_t {
    kStart,      // reasoning may begin
    kReasoning,  //
    kForced,     // the closing marker, token by token
    kAnswer,     //
  };
  struct Place {
    Phase phase = Phase::kStart;
    int64_t count = 0;  // kReasoning: tokens; kForced: of the closing marker
    std::string tail;   // what may become a marker
  };

  Cursor(const Cursor& other, std::unique_ptr<ConstraintCursor> answer)
      : plan_(other.plan_),
        answer_(std::move(answer)),
        now_(other.now_),
        before_(other.before_),
        answered_(other.answered_),
        start_(other.start_) {}

  static void set(std::span<uint32_t> bits, int32_t token) {
    const auto word = static_cast<size_t>(token / 32);
    if (token >= 0 && word < bits.size()) bits[word] |= uint32_t{1} << (token % 32);
  }
  static void shorten(std::string& text, size_t size) {
    if (text.size() > size) text.erase(0, text.size() - size);
  }
  void enter_reasoning() {
    now_ = {};
    now_.phase = Phase::kReasoning;
    if (!plan_->budget || *plan_->budget > 0) return;
    now_.phase = Phase::kForced;
  }
  void leave_reasoning() {
    now_ = {};
    now_.phase = Phase::kAnswer;
  }

  // Whether the token belongs to what comes before the answer. With a constraint of the answer that is only a
  // token which is the opening marker; without one its text counts, and the space before it.
  bool start(int32_t token) {
    if (answer_) {
      if (token != plan_->begin_token) return false;
      enter_reasoning();
      return true;
    }
    now_.tail += plan_->tokenizer->token_bytes(token);
    std::string_view text = now_.tail;
    while (!text.empty() && tools::is_space(text.front())) text.remove_prefix(1);
    if (text.starts_with(plan_->begin)) enter_reasoning();
    else if (!std::string_view(plan_->begin).starts_with(text)) return false;
    else now_.tail = std::string(text);
    return true;
  }

  bool advance_answer(int32_t token) {
    if (answer_ && !answer_->advance(token)) return false;
    ++answered_;
    return true;
  }

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<ConstraintCursor> answer_;  // null: anything
  Place now_;
  std::vector<Place> before_;   // each token that is not of the answer
  int64_t answered_ = 0;        // tokens of the answer
  std::optional<Place> start_;  // where the answer began with its first token
};

class ReplyConstraint final : public Constraint {
 public:
  explicit ReplyConstraint(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::unique_ptr<ConstraintCursor> start() const override { return std::make_unique<Cursor>(plan_); }

 private:
  std::shared_ptr<const Plan> plan_;
};

std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  Result<std::vector<int32_t>> ids = tokenizer.encode(text, {.add_special_tokens = false});
  return ids.ok() ? std::move(*ids) : std::vector<int32_t>();
}

}  // namespace

std::shared_ptr<const Constraint> make_reply_constraint(const ReplyFormat* format, TokenizerPtr tokenizer,
                                                        std::optional<int64_t> budget,
                                                        std::shared_ptr<const Constraint> answer) {
  const tools::ReasoningStyle* style = format ? format->reasoning : nullptr;
  // Harmony's messages are part of what the answer's grammar says.
  if (!style || (!budget && !answer) || (style->harmony && answer)) return answer;
  auto plan = std::make_shared<Plan>();
  // A harmony reply closes a message; what it may say next is the answer's.
  plan->begin = style->harmony ? "<|channel|>analysis<|message|>" : style->begin;
  plan->end = style->harmony ? "<|end|>" : style->end;
  plan->end_tokens = tokens_of(*tokenizer, plan->end);
  if (const std::vector<int32_t> begin = tokens_of(*tokenizer, plan->begin); begin.size() == 1)
    plan->begin_token = begin[0];
  plan->in_reasoning = format->in_reasoning;
  plan->budget = budget;
  plan->answer = std::move(answer);
  plan->tokenizer = std::move(tokenizer);
  return std::make_shared<ReplyConstraint>(std::move(plan));
}

}  // namespace oar
