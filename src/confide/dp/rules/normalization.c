/* Per-example gradients of a LayerNorm: Σ_t x̂_t ∘ g_t and Σ_t g_t, from inputs that are normalised on the way. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <math.h>

enum { LANES = 16 };

static inline __attribute__((always_inline)) float total(const float *restrict x, long n, float shift, int squares) {
    float part[LANES] = {0};
    long j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int k = 0; k < LANES; k++) {
            const float v = x[j + k] - shift;
            part[k] += squares ? v * v : v;
        }
    for (int k = 0; j < n; j++, k++) {
        const float v = x[j] - shift;
        part[k] += squares ? v * v : v;
    }
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += part[k];
    return (float)(sum / n);
}

__attribute__((target("avx2,fma"))) static void
one(const float *restrict x, const float *restrict g, long positions, long n, float eps, float *restrict weight, float *restrict bias) {
    for (long j = 0; j < n; j++) weight[j] = bias[j] = 0;
    for (long t = 0; t < positions; t++, x += n, g += n) {
        const float mean = total(x, n, 0, 0), scale = 1 / sqrtf(total(x, n, mean, 1) + eps);
        for (long j = 0; j < n; j++) {
            weight[j] += (x[j] - mean) * scale * g[j];
            bias[j] += g[j];
        }
    }
}

/* x and g [examples, positions, features] lie close together; weight and bias [examples, features]. */
void confide_layernorm(const float *x, const float *g, long examples, long positions, long features, double eps, float *weight,
                       float *bias, int threads) {
    const long size = positions * features;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long e = 0; e < examples; e++)
        one(x + e * size, g + e * size, positions, features, (float)eps, weight + e * features, bias + e * features);
}
#endif
