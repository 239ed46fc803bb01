#include "hrm/metrics/metric_text.h"

#include <cmath>
#include <sstream>

namespace hrm::metrics {

std::string percent(double share) {
  if (std::isnan(share)) return "-";
  std::ostringstream out;
  out.setf(std::ios::fixed);
  out.precision(share >= 0.9995 || share == 0 ? 0 : 1);
  out << share * 100 << " %";
  return out.str();
}

std::string fixed(double value, int digits) {
  if (std::isnan(value)) return "-";
  std::ostringstream out;
  out.setf(std::ios::fixed);
  out.precision(digits);
  out << value;
  return out.str();
}

}  // namespace hrm::metrics
