// A grammar in GBNF, any bytes: refused, or a constraint whose masks hold.
#include "tests/fuzz/constraint_target.h"
#include "tests/fuzz/target.h"

OAR_FUZZ_TARGET(gbnf) {
  return oar_fuzz::constraint(oar::grammar::ConstraintSpec::Kind::kGrammar, data, size);
}
