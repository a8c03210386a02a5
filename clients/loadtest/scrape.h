// The server's own numbers while a run goes on: /metrics once per interval, in a thread of its own.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "clients/loadtest/run.h"

namespace oar::loadtest {

struct Sample {
  double at = 0;                         // seconds since the scraper began
  std::map<std::string, double> values;  // by metric name, summed over label sets
};

// Values of `names` in a Prometheus text, label sets of one name added up.
std::map<std::string, double> parse_metrics(std::string_view text, const std::vector<std::string>& names);

// Names worth a plot, of this server and of its peers.
const std::vector<std::string>& default_metrics();

class Scraper {
 public:
  // GET `path` of the server every `interval` seconds until destroyed or stopped.
  Scraper(Server server, std::string path, std::vector<std::string> headers, double interval);
  ~Scraper() { stop(); }
  // Ends the thread and gives what was seen. A server without metrics gives no samples.
  std::vector<Sample> stop();

 private:
  void main();
  Server server_;
  std::string path_;
  std::vector<std::string> headers_;
  double interval_;
  std::atomic<bool> stop_{false};
  std::vector<Sample> samples_;  // the thread's until joined
  std::thread thread_;
};

// GET; the body of a 200. The whole takes at most `timeout` seconds.
Result<std::string> http_get(const Server& server, const std::string& path,
                             const std::vector<std::string>& headers, double timeout);

}  // namespace oar::loadtest
