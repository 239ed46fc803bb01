#include "hrm/data/text_encoder.h"

namespace hrm::data {

TextEncoder byte_encoder() {
  constexpr int64_t kBytes = 256;
  TextEncoder encoder;
  encoder.encode = [](std::string_view text) {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  };
  encoder.decode = [](const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < kBytes) text += static_cast<char>(id);
    }
    return text;
  };
  encoder.meta.bos_id = kBytes;
  encoder.meta.eos_id = kBytes + 1;
  encoder.meta.pad_id = kBytes + 2;
  encoder.meta.vocab_size = kBytes + 3;
  encoder.meta.tokenizer_file = kByteTokenizer;
  return encoder;
}

}  // namespace hrm::data
