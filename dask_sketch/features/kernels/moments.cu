// Sums of exp(-2 pi i t) over samples on the GPU, t = (omega / 2 pi) . (x - center) in cycles.
//
// Compiled for each number of features and type of rows (CuPy and NVRTC; compute capability 8.0):
//   N_FEATURES  number of features
//   RAW         type of the raw rows
//   REAL        precision of the feature map, float or double
// without contraction (--fmad=false): every rounding is where it is written. CuPy adds -ftz=true,
// which takes numbers below 1e-38 for zero.
//
// REAL = float. The projection runs on the tensor cores, without error in the leading part: a
// sample and a frequency are each split into three bfloat16 parts of 8 bits, x = x1 + x2 + x3, on a
// grid that is fixed for the row or column (a power of two below its largest entry; features are
// scaled by powers of two before). The products x1 w1 are then multiples of one number, and so
// small that their sum is exact in float32 for any order and rounding of the tensor core (up to 256
// features): removing the integer cycles from it is exact. The five products that follow in size
// are summed separately; the rest is below 2^-24 of the largest product. Rows with phases of more
// than FAR cycles are left to the float64 kernel.
//
// Integer cycles are removed, and half the angle is the argument of two polynomials, s = sin(pi r)
// and c = cos(pi r) on |r| <= 1/2, of which
//     cos(2 pi r) = 1 - 2 s s,    sin(2 pi r) = 2 s c:
// a sum takes one fused multiply-add, there is no sign to restore, and a row of zeros adds nothing,
// so that omitted rows and padding need no branch. Per pair: 7/4 tensor operations, 15 others.
//
// Each thread adds 8 pairs in float32, then in float64, in an order that depends only on the
// numbers of rows and frequencies: no atomics, the same bits in every run. Tensor cores of another
// generation may round the small products differently: by about 2^-30 of the largest one.

#ifndef N_FEATURES
#define N_FEATURES 12
#endif
#ifndef RAW
#define RAW float
#endif
#ifndef REAL
#define REAL float
#endif

#define DEPTH 16                                      // features of one tensor operation
#define STEPS ((N_FEATURES + DEPTH - 1) / DEPTH)      // operations for all features
#define TILE 16                                       // rows of one tensor operation
#define FLUSH 4                                       // tiles between two float64 additions
#define COLUMNS 4                                     // groups of 8 frequencies that a warp holds
#define WARPS 4                                       // of a block
#define ALL 0xffffffffu
#define SLAB 8192                                     // rows that one block counts
#define PART 1024                                     // rows that one block describes
#define UNROLL 4                                      // of which a thread reads so many at once
#define FAR 32768.0f  // cycles; beyond, float32 is too coarse to remove integer cycles safely
#define LEAST_WEIGHT 0x1p-32
#define LARGEST_WEIGHT 0x1p32
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

enum State { TAKEN = 0, NOT_FINITE = 1, BAD_WEIGHT = 2, FAR_AWAY = 3 };

// ---- rows ----------------------------------------------------------------------------------

__device__ __forceinline__ REAL centred(RAW raw, double center) {
    return (REAL)((double)raw - center);
}

__device__ __forceinline__ float power_of_two(int exponent) {
    return __int_as_float((exponent + 127) << 23);
}

// The bits of two bfloat16 numbers in one word, the first one lowest. Both are exact.
__device__ __forceinline__ unsigned packed(float low, float high) {
    return (unsigned)__float_as_int(low) >> 16 | ((unsigned)__float_as_int(high) & 0xffff0000u);
}

__device__ __forceinline__ float to_bfloat(float value) {  // rounded to nearest, ties to even
    unsigned bits = (unsigned)__float_as_int(value);
    return __int_as_float((int)((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u));
}

// Three parts of a value on the grid 2^exponent / 128; exponent is that of the largest entry.
__device__ __forceinline__ void cut(float value, int exponent, float part[3]) {
    float first = rintf(value * power_of_two(7 - exponent));
    part[0] = first * power_of_two(exponent - 7);
    float rest = value - part[0];
    part[1] = rintf(rest * power_of_two(16 - exponent)) * power_of_two(exponent - 16);
    part[2] = to_bfloat(rest - part[1]);
}

// State and weight of every row; for float32, its three parts in the order of the tensor cores:
// samples[tile][step][part][lane]. One warp for each tile of 16 rows; rows beyond the last are zero.
// scales are powers of two that bring the largest frequency of each feature to between 1/2 and 1,
// so that the sum of a row's scaled features bounds its phases.
extern "C" __global__ void take_rows(const RAW* __restrict__ rows, long long n_rows,
                                     const double* __restrict__ center,
                                     const double* __restrict__ weights, int weighted,
                                     const float* __restrict__ scales, long long n_tiles,
                                     uint4* __restrict__ samples, double* __restrict__ shares,
                                     unsigned char* __restrict__ states) {
    long long tile = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32, member = lane % 4;
    if (tile >= n_tiles) return;
    int exponent[2];
    bool used[2];
    for (int half = 0; half < 2; half++) {
        long long row = tile * TILE + lane / 4 + 8 * half;
        bool there = row < n_rows, fine = true;
        float largest = 0.0f, bound = 0.0f;
        for (int f = member; there && f < N_FEATURES; f += 4) {
            RAW raw = rows[row * N_FEATURES + f];
            fine = fine && isfinite((double)raw);
            float size = fabsf((float)centred(raw, center[f]) * scales[f]);
            largest = fmaxf(largest, size);
            bound += size;
        }
        int bad = !fine;
        for (int other = 1; other <= 2; other *= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, other));
            bound += __shfl_xor_sync(ALL, bound, other);
            bad |= __shfl_xor_sync(ALL, bad, other);
        }
        double share = there && !bad ? 1.0 : 0.0;
        int state = bad ? NOT_FINITE : TAKEN;
        if (there && !bad && weighted) {
            double weight = weights[row];
            bool valid = weight == 0.0 || (weight >= LEAST_WEIGHT && weight <= LARGEST_WEIGHT);
            if (!valid) state = BAD_WEIGHT;
            share = valid ? (double)(REAL)weight : 0.0;
        }
        if (state == TAKEN && sizeof(REAL) == 4 && !(bound < FAR)) state = FAR_AWAY;
        used[half] = there && state == TAKEN;
        exponent[half] = max((__float_as_int(largest) >> 23) - 127, -100);
        if (member == 0) {
            shares[row] = share;
            if (there) states[row] = (unsigned char)state;
        }
    }
    if (sizeof(REAL) != 4) return;
    for (int step = 0; step < STEPS; step++) {
        unsigned words[3][4];
        for (int half = 0; half < 2; half++) {
            long long row = tile * TILE + lane / 4 + 8 * half;
            for (int side = 0; side < 2; side++) {
                float parts[2][3] = {};
                for (int i = 0; i < 2; i++) {
                    int f = step * DEPTH + 8 * side + 2 * member + i;
                    if (used[half] && f < N_FEATURES) {
                        float value = (float)centred(rows[row * N_FEATURES + f], center[f]);
                        cut(value * scales[f], exponent[half], parts[i]);
                    }
                }
                for (int part = 0; part < 3; part++)
                    words[part][half + 2 * side] = packed(parts[0][part], parts[1][part]);
            }
        }
        for (int part = 0; part < 3; part++)
            samples[((tile * STEPS + step) * 3 + part) * 32 + lane] =
                make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
    }
}

// ---- moments, float32 ----------------------------------------------------------------------

// Of less than 2^22: the sum has no bits for fractions. Two additions, where a conversion takes four
// times the time of one.
__device__ __forceinline__ float minus_nearest_whole(float x) {
    return 12582912.0f - (x + 12582912.0f);
}

#ifndef EMULATED
// Written out, since CuPy compiles with -ftz=true, which would flush before, at a cost.
__device__ __forceinline__ double widened(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}

// d = a b + c for 16 rows, 8 frequencies and 16 features.
__device__ __forceinline__ void multiply(float d[4], const uint4& a, const uint2& b,
                                         const float c[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}
#endif

// sin(pi r) / r and cos(pi r) in y = r r, in float32: found together with the rounding of their
// coefficients. The error of 1 - 2 s s has a mean below 5e-8 in any stretch of phases; of a single
// pair it is at most 6e-7, of 2 s c 3e-7.
__device__ __forceinline__ float sine(float y, float r) {
    float p = fmaf(0.07802095264196396f, y, -0.5985172390937805f);
    p = fmaf(p, y, 2.55012583732605f);
    p = fmaf(p, y, -5.1677141189575195f);
    return fmaf(p, y, 3.1415927410125732f) * r;
}

__device__ __forceinline__ float cosine(float y) {
    float p = fmaf(-0.023963654413819313f, y, 0.23468372225761414f);
    p = fmaf(p, y, -1.335161566734314f);
    p = fmaf(p, y, 4.0587053298950195f);
    p = fmaf(p, y, -4.934802055358887f);
    return fmaf(p, y, 1.0f);
}

// The small products of one operation's features, added to c.
__device__ __forceinline__ void multiply_small(float c[4], const uint4 x[3], const uint2 w[3]) {
    multiply(c, x[0], w[2], c);
    multiply(c, x[2], w[0], c);
    multiply(c, x[1], w[1], c);
    multiply(c, x[0], w[1], c);
    multiply(c, x[1], w[0], c);
}

// Phases r of 16 rows and 8 COLUMNS frequencies, without their integer cycles.
struct Phases {
    float r[COLUMNS][4];
    uint4 x[3];

    __device__ __forceinline__ void load(const uint4* samples, long long tile, int step) {
        for (int part = 0; part < 3; part++)
            x[part] = samples[((tile * STEPS + step) * 3 + part) * 32];
    }

    // Up to DEPTH features: the frequencies w are at hand.
    __device__ __forceinline__ void of_few_features(const uint4* samples, long long tile,
                                                    const uint2 w[COLUMNS][3]) {
        load(samples, tile, 0);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float small[4] = {0.0f, 0.0f, 0.0f, 0.0f}, cycles[4];
            multiply_small(small, x, w[j]);
            multiply(cycles, x[0], w[j][0], small);
            for (int i = 0; i < 4; i++) cycles[i] = minus_nearest_whole(cycles[i]);
            multiply(cycles, x[0], w[j][0], cycles);  // exact
            for (int i = 0; i < 4; i++) r[j][i] = cycles[i] + small[i];
        }
    }

    // Any number: the frequencies are read again for every tile.
    __device__ __forceinline__ void of_many_features(const uint4* samples, long long tile,
                                                     const uint2* frequencies) {
        float cycles[COLUMNS][4] = {}, small[COLUMNS][4] = {};
#pragma unroll 1
        for (int k = 0; k < STEPS; k++) {
            load(samples, tile, k);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                uint2 w[3];
                for (int part = 0; part < 3; part++)
                    w[part] = frequencies[((j * STEPS + k) * 3 + part) * 32];
                multiply_small(small[j], x, w);
                multiply(cycles[j], x[0], w[0], cycles[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            for (int i = 0; i < 4; i++)
                r[j][i] = cycles[j][i] + minus_nearest_whole(cycles[j][i] + small[j][i]) + small[j][i];
    }
};

// Sums of w s s and w s c over the tiles of one split, partial[split][2][width]. A warp holds
// 8 COLUMNS frequencies, frequencies[column][step][part][lane]; a lane has 2 rows by 2 of each 8.
template <bool WEIGHTED>
__device__ __forceinline__ void sum_tiles(const uint4* __restrict__ samples,
                                          const uint2* __restrict__ frequencies,
                                          const double* __restrict__ shares, long long n_tiles,
                                          int tiles_per_split, long long width,
                                          double* __restrict__ partial) {
    int lane = threadIdx.x % 32;
    long long column = ((long long)blockIdx.x * WARPS + threadIdx.x / 32) * COLUMNS;
    long long first = (long long)blockIdx.y * tiles_per_split;
    long long last = min(first + tiles_per_split, n_tiles);
    samples += lane;
    frequencies += column * STEPS * 3 * 32 + lane;
    uint2 w[COLUMNS][3];
    if (STEPS == 1)
        for (int j = 0; j < COLUMNS; j++)
            for (int part = 0; part < 3; part++) w[j][part] = frequencies[(j * 3 + part) * 32];
    double total[COLUMNS][2][2] = {};
    for (long long start = first; start < last; start += FLUSH) {
        float sums[COLUMNS][2][2] = {};
#pragma unroll 1
        for (long long tile = start; tile < start + FLUSH; tile++) {
            Phases phases;
            if (STEPS == 1)
                phases.of_few_features(samples, tile, w);
            else
                phases.of_many_features(samples, tile, frequencies);
            float share[2] = {1.0f, 1.0f};
            if (WEIGHTED)
                for (int half = 0; half < 2; half++)
                    share[half] = (float)shares[tile * TILE + lane / 4 + 8 * half];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float r = phases.r[j][i], y = r * r, s = sine(y, r), c = cosine(y);
                    float u = WEIGHTED ? s * share[i / 2] : s;
                    sums[j][i % 2][0] = fmaf(u, s, sums[j][i % 2][0]);
                    sums[j][i % 2][1] = fmaf(u, c, sums[j][i % 2][1]);
                }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            for (int i = 0; i < 4; i++) total[j][i / 2][i % 2] += widened(sums[j][i / 2][i % 2]);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        for (int i = 0; i < 4; i++) {
            double value = total[j][i / 2][i % 2];
            for (int other = 4; other < 32; other *= 2)
                value += __shfl_xor_sync(ALL, value, other);
            if (lane < 4)
                partial[((long long)blockIdx.y * 2 + i % 2) * width + (column + j) * 8 + 2 * lane +
                        i / 2] = value;
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4)
    sum_moments(const uint4* samples, const uint2* frequencies, const double* shares,
                long long n_tiles, int tiles_per_split, long long width, double* partial) {
    sum_tiles<false>(samples, frequencies, shares, n_tiles, tiles_per_split, width, partial);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4)
    sum_weighted(const uint4* samples, const uint2* frequencies, const double* shares,
                 long long n_tiles, int tiles_per_split, long long width, double* partial) {
    sum_tiles<true>(samples, frequencies, shares, n_tiles, tiles_per_split, width, partial);
}

// ---- moments, float64 ----------------------------------------------------------------------

// Weighted sums of cosines and sines over the rows of one state, partial[split][2][width].
// cycles[feature][width]. A thread has 4 frequencies and takes 2 rows at a time.
extern "C" __global__ void __launch_bounds__(128)
    sum_exact(const RAW* __restrict__ rows, long long n_rows, const double* __restrict__ center,
              const double* __restrict__ shares, const unsigned char* __restrict__ states,
              int state, const double* __restrict__ cycles, int rows_per_split, long long width,
              double* __restrict__ partial) {
    long long column = (long long)blockIdx.x * 512 + threadIdx.x;
    long long first = (long long)blockIdx.y * rows_per_split;
    long long last = min(first + rows_per_split, n_rows);
    double total[4][2] = {};
    for (long long row = first; row < last; row += 2) {
        double share[2], t[2][4] = {};
        for (int i = 0; i < 2; i++)
            share[i] = row + i < last && states[row + i] == state ? shares[row + i] : 0.0;
        if (share[0] == 0.0 && share[1] == 0.0) continue;
        long long next = min(row + 1, last - 1);
        for (int f = 0; f < N_FEATURES; f++) {
            double x0 = (double)centred(rows[row * N_FEATURES + f], center[f]);
            double x1 = (double)centred(rows[next * N_FEATURES + f], center[f]);
            for (int j = 0; j < 4; j++) {
                double w = column + 128 * j < width ? cycles[f * width + column + 128 * j] : 0.0;
                t[0][j] = fma(x0, w, t[0][j]);
                t[1][j] = fma(x1, w, t[1][j]);
            }
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; share[i] != 0.0 && j < 4; j++) {
                double s, c;
                sincospi(2.0 * t[i][j], &s, &c);
                total[j][0] = fma(share[i], c, total[j][0]);
                total[j][1] = fma(share[i], s, total[j][1]);
            }
    }
    for (int j = 0; j < 4; j++)
        for (int i = 0; column + 128 * j < width && i < 2; i++)
            partial[((long long)blockIdx.y * 2 + i) * width + column + 128 * j] = total[j][i];
}

// ---- reductions ----------------------------------------------------------------------------

// sums[j] += partial[split][j], split by split.
extern "C" __global__ void add_partials(const double* __restrict__ partial, int n_splits,
                                        long long n, double* __restrict__ sums) {
    long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    double sum = sums[j];
    for (int split = 0; split < n_splits; split++) sum += partial[split * n + j];
    sums[j] = sum;
}

// Of each slab of rows: numbers of rows taken, far away and not finite; weight of those taken and
// of those far away; squared weight of both; first row that is not finite and first bad weight, or
// n_rows. out[slab][8]. Blocks of 256 threads.
extern "C" __global__ void count_rows(const double* __restrict__ shares,
                                      const unsigned char* __restrict__ states, long long n_rows,
                                      double* __restrict__ out) {
    __shared__ double found[8][256];
    long long first = (long long)blockIdx.x * SLAB;
    double mine[8] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (double)n_rows, (double)n_rows};
    for (long long row = first + threadIdx.x; row < min(first + SLAB, n_rows); row += 256) {
        double share = shares[row];
        int state = states[row];
        mine[0] += state == TAKEN;
        mine[1] += state == FAR_AWAY;
        mine[2] += state == NOT_FINITE;
        mine[3] += state == TAKEN ? share : 0.0;
        mine[4] += state == FAR_AWAY ? share : 0.0;
        mine[5] += share * share;
        if (state == NOT_FINITE) mine[6] = fmin(mine[6], (double)row);
        if (state == BAD_WEIGHT) mine[7] = fmin(mine[7], (double)row);
    }
    for (int i = 0; i < 8; i++) found[i][threadIdx.x] = mine[i];
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            for (int i = 0; i < 8; i++) {
                double a = found[i][threadIdx.x], b = found[i][threadIdx.x + half];
                found[i][threadIdx.x] = i < 6 ? a + b : fmin(a, b);
            }
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < 8; i++) out[blockIdx.x * 8 + i] = found[i][0];
}

__device__ __forceinline__ double joined(int kind, double a, double b) {
    return kind == 0 ? fmin(a, b) : kind == 1 ? fmax(a, b) : a + b;
}

// Minimum, maximum, and first two moments about the center of the rows with a weight, of each slab of
// PART rows, out[slab][4][feature]. Blocks of 256 threads; a block has 256 features at most, and a
// thread reads UNROLL rows before it adds them.
extern "C" __global__ void describe_features(const RAW* __restrict__ rows, long long n_rows,
                                             const double* __restrict__ center,
                                             const double* __restrict__ shares,
                                             double* __restrict__ out) {
    __shared__ double found[4][256];
    int width = min(256, N_FEATURES - 256 * (int)blockIdx.y), groups = 256 / width;
    int f = 256 * blockIdx.y + threadIdx.x % width, group = threadIdx.x / width;
    long long first = (long long)blockIdx.x * PART, last = min(first + PART, n_rows);
    double low = INFINITY, high = -INFINITY, sum = 0.0, squares = 0.0, middle = center[f];
    for (long long row = first + group; group < groups && row < last; row += UNROLL * groups) {
        double values[UNROLL], share[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            long long at = min(row + i * groups, last - 1);
            values[i] = (double)rows[at * N_FEATURES + f];
            share[i] = row + i * groups < last ? shares[at] : 0.0;
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            if (share[i] == 0.0) continue;
            low = fmin(low, values[i]);
            high = fmax(high, values[i]);
            double value = values[i] - middle;
            sum += share[i] * value;
            squares += share[i] * value * value;
        }
    }
    found[0][threadIdx.x] = low;
    found[1][threadIdx.x] = high;
    found[2][threadIdx.x] = sum;
    found[3][threadIdx.x] = squares;
    __syncthreads();
    if (group != 0) return;
    for (int other = 1; other < groups; other++) {
        int place = threadIdx.x + other * width;
        low = fmin(low, found[0][place]);
        high = fmax(high, found[1][place]);
        sum += found[2][place];
        squares += found[3][place];
    }
    double* to = out + (long long)blockIdx.x * 4 * N_FEATURES + f;
    to[0] = low;
    to[N_FEATURES] = high;
    to[2 * N_FEATURES] = sum;
    to[3 * N_FEATURES] = squares;
}

// The descriptions of all slabs in one, out[4][feature]. Blocks of 256 threads, one for each of the
// 4 N_FEATURES numbers.
extern "C" __global__ void join_descriptions(const double* __restrict__ slabs, long long n_slabs,
                                             double* __restrict__ out) {
    __shared__ double found[256];
    int number = blockIdx.x, kind = number / N_FEATURES;
    double value = kind == 0 ? INFINITY : kind == 1 ? -INFINITY : 0.0;
    for (long long slab = threadIdx.x; slab < n_slabs; slab += 256)
        value = joined(kind, value, slabs[slab * 4 * N_FEATURES + number]);
    found[threadIdx.x] = value;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            found[threadIdx.x] = joined(kind, found[threadIdx.x], found[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) out[number] = found[0];
}
