#include "server/generation/delta_pieces.h"

#include <algorithm>
#include <vector>

namespace hadal::server {
namespace {

size_t logprobs_in(const std::vector<TokenLogprob>& positions) {
  return positions.empty() ? 0 : positions.size() * (1 + positions.front().top.size());
}

// Moves log-probabilities from position `at` on, as many positions as there is room for. A piece gets at
// least one position.
void move_some(std::vector<TokenLogprob>& from, size_t& at, std::vector<TokenLogprob>& to, size_t& room) {
  for (; at < from.size() && room > 0; ++at) {
    const size_t size = 1 + from[at].top.size();
    if (size > room && room < kLogprobsPerPiece) {
      room = 0;
      return;
    }
    room -= std::min(room, size);
    to.push_back(std::move(from[at]));
  }
}

}  // namespace

bool DeltaPieces::needed(const GenerationDelta& delta) {
  return logprobs_in(delta.prompt_logprobs) + logprobs_in(delta.logprobs) > kLogprobsPerPiece;
}

GenerationDelta DeltaPieces::next() {
  GenerationDelta piece;
  size_t room = kLogprobsPerPiece;
  move_some(rest_.prompt_logprobs, prompt_idx_, piece.prompt_logprobs, room);
  move_some(rest_.logprobs, output_idx_, piece.logprobs, room);
  piece.has_more = prompt_idx_ < rest_.prompt_logprobs.size() || output_idx_ < rest_.logprobs.size();
  if (piece.has_more) return piece;
  rest_.prompt_logprobs = std::move(piece.prompt_logprobs);
  rest_.logprobs = std::move(piece.logprobs);
  return std::move(rest_);
}

}  // namespace hadal::server
