#include "train/metrics.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"

namespace distca {
namespace {

/// The lines of `text` that are whole, hold a step and come before `first_step`.
std::string lines_before(const std::string& text, int64_t first_step) {
  std::string kept;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool has_step = value.is_object() && value.contains("step") && value["step"].is_number_integer();
    if (has_step && value["step"].get<int64_t>() < first_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string metrics_line(const StepMetrics& m) {
  Json line = {{"step", m.step},
               {"loss", m.loss},
               {"tokens", m.tokens},
               {"targets", m.targets},
               {"padding", m.padding},
               {"documents", m.documents},
               {"long_documents", m.long_documents},
               {"step_s", m.step_s},
               {"tokens_per_s", m.tokens_per_s},
               {"compute_s", m.compute_s},
               {"lr", m.lr},
               {"grad_norm", m.grad_norm},
               {"load_max_over_mean", m.load_max_over_mean},
               {"load_max_over_mean_none", m.load_max_over_mean_none},
               {"bytes", m.bytes},
               {"wait_s", m.wait_s},
               {"pack_s", m.pack_s},
               {"reduce_s", m.reduce_s},
               {"plan_ms", m.plan_ms},
               {"redone", m.redone},
               {"servers", m.servers},
               {"digest", hex_digest(m.digest)}};
  line["held_rows"] = m.held_rows;
  line["held_rows_max_over_mean"] = m.held_rows_max_over_mean;
  if (m.idle_share > 0) line["idle_done"] = m.idle_load / m.idle_share;
  if (!m.speeds.empty()) line["speeds"] = m.speeds;
  if (m.timing_only) line["timing_only"] = true;
  return line.dump();
}

MetricsFile::MetricsFile(std::string path, int64_t first_step) : path_(std::move(path)) {
  const bool exists = first_step > 0 && std::filesystem::exists(path_);
  write_file_atomically(path_, exists ? lines_before(read_text(path_), first_step) : "");
  file_ = std::fopen(path_.c_str(), "ab");
  DISTCA_CHECK(file_ != nullptr, "{}: can't be opened for writing", path_);
}

MetricsFile::~MetricsFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void MetricsFile::write(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  DISTCA_CHECK(written && std::fflush(file_) == 0, "{}: can't be written (is the disk full?)", path_);
}

ProgressLine::ProgressLine(int64_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  finish();
}

void ProgressLine::show(const StepMetrics& metrics) {
  const std::string text = line(metrics);
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", text.c_str());
  std::fflush(stderr);
  open_ = terminal_;
}

void ProgressLine::finish() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

std::string ProgressLine::line(const StepMetrics& m) {
  mean_step_s_ = mean_step_s_ == 0 ? m.step_s : 0.9 * mean_step_s_ + 0.1 * m.step_s;
  const double left = mean_step_s_ * static_cast<double>(steps_ - m.step - 1);
  char loss[32], load[32];
  std::snprintf(loss, sizeof loss, "%.4f", m.loss);
  std::snprintf(load, sizeof load, "%.2f", m.load_max_over_mean);
  return format("step {}/{} · loss {} · {} tokens/s · load {} · {} left", m.step + 1, steps_, loss,
                with_commas(std::llround(m.tokens_per_s)), load, duration(left));
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(std::abs(number));
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3) digits.insert(place, ",");
  return (number < 0 ? "-" : "") + digits;
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const auto two = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  if (whole < 60) return std::to_string(whole) + "s";
  if (whole < 3600) return std::to_string(whole / 60) + "m" + two(whole % 60) + "s";
  return std::to_string(whole / 3600) + "h" + two(whole / 60 % 60) + "m";
}

}  // namespace distca
