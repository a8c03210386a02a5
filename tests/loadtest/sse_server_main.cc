// sse_server PORT THREADS FIRST_MS GAP_MS CHUNKS PER_WRITE: serves until it is ended. See
// docs/performance.md.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/loadtest/sse_server.h"

int main(int argc, char** argv) {
  const auto number = [&](int i, double otherwise) {
    return argc > i ? std::strtod(argv[i], nullptr) : otherwise;
  };
  oar_test::SseBehaviour b;
  b.first_ms = number(3, 0);
  b.gap_ms = number(4, 0);
  b.chunks = static_cast<int>(number(5, 0));
  b.per_write = static_cast<int>(number(6, 1));
  const oar_test::SseServer server(b, static_cast<int>(number(2, 1)), static_cast<int>(number(1, 0)));
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  while (true) pause();
}
