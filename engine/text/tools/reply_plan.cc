#include "engine/text/tools/reply_plan.h"

#include "engine/base/format.h"
#include "engine/text/tools/call_grammar.h"
#include "engine/text/tools/reply_constraint.h"

namespace oar {
namespace {

using grammar::ConstraintSpec;

Status budget_fault(const ReplyRequest& request, std::string_view why) {
  return invalid_argument(cat(request.thinking_field, " ", why), request.thinking_field);
}

// What the reply may say behind its reasoning.
Status compile_answer(const ReplyModel& model, const ReplyRequest& request, ReplyPlan& plan) {
  const bool answer = request.answer.kind != ConstraintSpec::Kind::kNone;
  const tools::ToolRequest& tools = request.tools;
  const bool harmony = plan.format && plan.format->reasoning && plan.format->reasoning->harmony;
  if (!answer && !tools.constrained()) return ok_status();
  const bool required = tools.mode == tools::ToolRequest::Mode::kRequired;
  plan.constraint_field = required ? "tool_choice" : answer ? request.answer.field : "tools";
  if (model.constraints == nullptr)
    return unimplemented(cat(plan.constraint_field, ": this model takes no constraints; leave it out"));
  if (!tools.active() && !harmony) {
    OAR_ASSIGN(plan.constraint, model.constraints->compile(request.answer));
    return ok_status();
  }
  // Harmony's answers are messages, whether there are tools or not.
  const tools::ToolStyle* style = plan.format->calls;
  if (style == nullptr) { OAR_ASSIGN(style, tools::find_tool_style("harmony", {})); }
  OAR_ASSIGN(plan.constraint, tools::compile_reply(*style, tools, answer ? &request.answer : nullptr,
                                                   *model.tokenizer, *model.constraints));
  return ok_status();
}

}  // namespace

Result<ReplyPlan> plan_reply(const ReplyModel& model, const ReplyRequest& request,
                             std::span<const int32_t> prompt) {
  ReplyPlan plan;
  OAR_ASSIGN(plan.format, make_reply_format(model.calls, model.reasoning, request.tools, request.reasoning,
                                            *model.tokenizer, prompt));
  if (request.thinking_budget && (!plan.format || !plan.format->reasoning))
    return budget_fault(request,
                        "needs reasoning that is told apart from the answer; leave it out, or name the way "
                        "the model writes it with reasoning-parser");
  OAR_RETURN_IF_ERROR(compile_answer(model, request, plan));
  if (request.thinking_budget && plan.constraint && plan.format->reasoning->harmony)
    return budget_fault(request, "is not kept beside a constraint by this model; leave it out");
  if (request.thinking_budget && !plan.constraint) plan.constraint_field = request.thinking_field;
  plan.constraint = make_reply_constraint(plan.format.get(), model.tokenizer, request.thinking_budget,
                                          std::move(plan.constraint));
  if (plan.format) plan.end_tokens = plan.format->end_tokens(*model.tokenizer);
  return plan;
}

}  // namespace oar
