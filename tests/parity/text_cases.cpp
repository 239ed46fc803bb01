// text_diversity: distinct-n and BLEU of groups of texts, by the words of the case. pass_at_k: its table.

#include <fstream>

#include "hrm/metrics/text_metrics.h"
#include "hrm/metrics/text_statistics.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

void check_text_diversity(const Case& loaded) {
  const Tolerance tolerance{.rtol = loaded.json.at("tolerance").at("rtol"), .atol = 1e-12};
  std::ifstream file(loaded.folder / "groups.json");
  const json groups = json::parse(file);
  ASSERT_FALSE(groups.empty());
  for (size_t g = 0; g < groups.size(); ++g) {
    const json& group = groups[g];
    const auto texts = group.at("texts").get<std::vector<std::string>>();
    const auto what = [&](const std::string& name) { return "group " + std::to_string(g) + " " + name; };
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(metrics::words(texts[i]), group.at("tokens")[i].get<std::vector<std::string>>()) << what("tokens");
    }
    for (const int64_t n : {1, 2, 3}) {
      const std::string name = "distinct_" + std::to_string(n);
      expect_close(what(name), metrics::distinct_n(texts, n), group.at(name), tolerance);
    }
    const std::vector<double> bleu2 = metrics::bleu2(texts), bleu4 = metrics::bleu4_smoothed(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      expect_close(what("bleu2"), bleu2[i], group.at("bleu2")[i], tolerance);
      expect_close(what("bleu4"), bleu4[i], group.at("bleu4_method1")[i], tolerance);
    }
    if (texts.size() > 1) {
      expect_close(what("bleu_diversity"), metrics::bleu_diversity(texts).total, group.at("bleu_diversity"), tolerance);
    }
    expect_close(what("self_bleu"), metrics::self_bleu(texts), group.at("self_bleu"), tolerance);
  }
}

void check_pass_at_k(const Case& loaded) {
  const Tolerance tolerance{.rtol = loaded.json.at("tolerance").at("rtol"),
                            .atol = loaded.json.at("tolerance").at("atol")};
  for (const auto& [name, table] : loaded.group("n")) {
    const int64_t n = std::stoll(name);
    ASSERT_EQ(table.size(0), n + 1);
    for (int64_t c = 0; c <= n; ++c) {
      for (int64_t k = 1; k <= n; ++k) {
        expect_close("pass@" + std::to_string(k), metrics::pass_at_k(n, c, k), table[c][k - 1].item<double>(),
                     tolerance);
      }
    }
  }
}

const RegisterKind kTextDiversity("text_diversity", check_text_diversity);
const RegisterKind kPassAtK("pass_at_k", check_pass_at_k);

}  // namespace
}  // namespace hrm::parity
