/* AES-256 in counter mode by the processor's own instructions: the bytes that any other implementation gives, in all threads. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { ROUNDS = 14, LANES = 8, SPAN = 1024 };  /* blocks under way at once; blocks that a thread takes at a time */
#define AES __attribute__((target("aes,sse4.1")))
#define INLINE static inline __attribute__((always_inline, target("aes,sse4.1")))

INLINE __m128i folded(__m128i key) {  /* each word added to all that follow */
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_slli_si128(key, 8));
}

INLINE __m128i even(__m128i before, __m128i last, const int constant) {
    __m128i word;
    switch (constant) {  /* the instruction wants it written out */
    case 1: word = _mm_aeskeygenassist_si128(last, 1); break;
    case 2: word = _mm_aeskeygenassist_si128(last, 2); break;
    case 4: word = _mm_aeskeygenassist_si128(last, 4); break;
    case 8: word = _mm_aeskeygenassist_si128(last, 8); break;
    case 16: word = _mm_aeskeygenassist_si128(last, 16); break;
    case 32: word = _mm_aeskeygenassist_si128(last, 32); break;
    default: word = _mm_aeskeygenassist_si128(last, 64);
    }
    return _mm_xor_si128(folded(before), _mm_shuffle_epi32(word, 0xff));
}

/* The fifteen round keys of a key of 32 bytes (FIPS 197). */
AES void confide_expand(const uint8_t *key, uint8_t *keys) {
    __m128i k[ROUNDS + 1];
    k[0] = _mm_loadu_si128((const __m128i *)key);
    k[1] = _mm_loadu_si128((const __m128i *)(key + 16));
    for (int round = 2; round <= ROUNDS; round++)
        if (round % 2 == 0) k[round] = even(k[round - 2], k[round - 1], 1 << (round / 2 - 1));
        else k[round] = _mm_xor_si128(folded(k[round - 2]), _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[round - 1], 0), 0xaa));
    memcpy(keys, k, sizeof k);
}

AES static void span(const uint8_t *keys, uint64_t high, uint64_t low, long blocks, uint8_t *out) {
    __m128i k[ROUNDS + 1];
    memcpy(k, keys, sizeof k);
    for (long at = 0; at < blocks; at += LANES) {
        __m128i x[LANES];
        for (int i = 0; i < LANES; i++) {  /* the counter: 128 bits, the highest byte first */
            const uint64_t now = low + at + i, carried = high + (now < low);
            x[i] = _mm_xor_si128(_mm_set_epi64x(__builtin_bswap64(now), __builtin_bswap64(carried)), k[0]);
        }
        for (int round = 1; round < ROUNDS; round++)
            for (int i = 0; i < LANES; i++) x[i] = _mm_aesenc_si128(x[i], k[round]);
        for (int i = 0; i < LANES && at + i < blocks; i++)
            _mm_storeu_si128((__m128i *)out + at + i, _mm_aesenclast_si128(x[i], k[ROUNDS]));
    }
}

/* Blocks of the keystream, from the one that is `from` behind counter high·2^64 + low on. */
void confide_stream(const uint8_t *keys, uint64_t high, uint64_t low, long from, long blocks, uint8_t *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && blocks > SPAN)
    for (long at = 0; at < blocks; at += SPAN) {
        const uint64_t now = low + from + at;
        span(keys, high + (now < low), now, blocks - at < SPAN ? blocks - at : SPAN, out + 16 * at);
    }
}
#endif
