// Enough of CUDA to compile a kernel with a C++ compiler and to run it, block after block.
//
// Every thread of a block is a context of its own; at a shuffle, a tensor operation or a barrier it
// hands over to the next one, and goes on when all have come that far: by jumps, since swapcontext
// asks the system each time. `launch_NAME` takes its arguments as cuLaunchKernel does, and refuses
// those that do not fit.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#define EMULATED
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __syncthreads() hand_over()

using std::isfinite;
using std::max;
using std::min;

struct Place { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Thread {
    ucontext_t start;
    jmp_buf place;
    std::vector<char> stack = std::vector<char>(1 << 16);
    Place index;
    bool started, running;
    unsigned operations;  // that took a whole warp
};

static jmp_buf caller;
static std::vector<Thread> threads;
static int current;
static int direction = 1;  // in which the threads take turns
static Place gridDim, blockDim, blockIdx;
#define threadIdx (threads[current].index)

static int next_running() {
    int n = (int)threads.size();
    for (int step = 1; step <= n; step++) {
        int candidate = ((current + direction * step) % n + n) % n;
        if (threads[candidate].running) return candidate;
    }
    return -1;
}

[[noreturn]] static void enter(int next) {
    current = next;
    Thread& thread = threads[next];
    if (thread.started) _longjmp(thread.place, 1);
    thread.started = true;
    setcontext(&thread.start);
    __builtin_unreachable();
}

static void hand_over() {
    int next = next_running();
    if (next != current && !_setjmp(threads[current].place)) enter(next);
}

// ---- warps ---------------------------------------------------------------------------------

// What each thread put down for the operation at hand. There are two sets: a thread may be one
// operation ahead of its neighbours, not two.
struct Slot { unsigned a[4], b[2]; float c[4]; uint64_t value; };
static Slot slots[2][1024];

static Slot& slot(int parity, int thread) { return slots[parity][thread]; }

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    int me = current, parity = threads[me].operations++ % 2;
    memcpy(&slot(parity, me).value, &value, sizeof value);
    hand_over();
    T other;
    memcpy(&other, &slot(parity, me ^ lanes).value, sizeof other);
    return other;
}

static float from_bfloat(unsigned word, int high) {
    unsigned bits = high ? word & 0xffff0000u : word << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// of a normal number
static int exponent_of(double value) {
    int64_t bits;
    memcpy(&bits, &value, 8);
    return value == 0.0 ? -10000 : (int)(bits >> 52 & 0x7ff) - 1023;
}

// ldexp without a call; what is too small for a normal number is zero
static double scaled(double value, int exponent) {
    int64_t bits = (int64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return value * power;
}

// A sum as tensor cores make it at worst: terms are cut off 23 bits below the exponent of the
// largest one, and so is the sum. (A product counts with the sum of its factors' exponents.)
static float aligned_sum(const double (&terms)[17], const int (&exponents)[17]) {
    int largest = *std::max_element(exponents, exponents + 17);
    if (largest < -1000) return 0.0f;
    double sum = 0.0;
    for (double term : terms) sum += std::trunc(scaled(term, 23 - largest));
    if (sum == 0.0) return 0.0f;
    int spare = std::max(exponent_of(sum) - 23, 0);
    return (float)scaled(scaled(std::trunc(scaled(sum, -spare)), spare), largest - 23);
}

// mma.m16n8k16: lane 4 g + t has rows g and g + 8 of a, column g of b, and columns 2 t and 2 t + 1
// of the result.
inline void multiply(float d[4], const uint4& a, const uint2& b, const float c[4]) {
    int me = current, parity = threads[me].operations++ % 2;
    int warp = me / 32 * 32, g = me % 32 / 4, t = me % 4;
    slot(parity, me) = {{a.x, a.y, a.z, a.w}, {b.x, b.y}, {c[0], c[1], c[2], c[3]}, 0};
    hand_over();
    for (int i = 0; i < 4; i++) {
        int half = i / 2, column = 2 * t + i % 2;
        double terms[17];
        int exponents[17];
        for (int k = 0; k < 16; k++) {
            const Slot& left = slot(parity, warp + 4 * g + k % 8 / 2);
            const Slot& right = slot(parity, warp + 4 * column + k % 8 / 2);
            double x = from_bfloat(left.a[half + 2 * (k / 8)], k % 2);
            double y = from_bfloat(right.b[k / 8], k % 2);
            terms[k] = x * y;
            exponents[k] = exponent_of(x) + exponent_of(y);
        }
        terms[16] = slot(parity, me).c[i];
        exponents[16] = exponent_of(terms[16]);
        d[i] = aligned_sum(terms, exponents);
    }
}

// ---- numbers -------------------------------------------------------------------------------

inline double widened(float x) { return x; }
inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
inline void sincospi(double x, double* s, double* c) {
    long double angle = 3.14159265358979323846264338327950288L * (x - 2.0 * std::rint(0.5 * x));
    *s = (double)sinl(angle);
    *c = (double)cosl(angle);
}

// ---- launches ------------------------------------------------------------------------------

struct Job { virtual void run() = 0; };
static Job* job;

static void body() {
    job->run();
    threads[current].running = false;
    int next = next_running();
    if (next < 0) _longjmp(caller, 1);
    enter(next);
}

static void run_block() {
    if (!_setjmp(caller)) enter(direction > 0 ? 0 : (int)threads.size() - 1);
}

static void run_grid(const unsigned* grid, const unsigned* block) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads.resize(block[0]);
    for (unsigned y = 0; y < grid[1]; y++)
        for (unsigned x = 0; x < grid[0]; x++) {
            blockIdx = {x, y, 0};
            for (unsigned i = 0; i < block[0]; i++) {
                Thread& thread = threads[i];
                getcontext(&thread.start);
                thread.start.uc_stack.ss_sp = thread.stack.data();
                thread.start.uc_stack.ss_size = thread.stack.size();
                thread.start.uc_link = nullptr;
                makecontext(&thread.start, body, 0);
                thread.index = {i, 0, 0};
                thread.started = false;
                thread.running = true;
                thread.operations = 0;
            }
            run_block();
        }
}

template <class... A>
struct Launch : Job {
    void (*kernel)(A...);
    void** values;
    template <size_t... I>
    void call(std::index_sequence<I...>) { kernel(*(A*)values[I]...); }
    void run() override { call(std::index_sequence_for<A...>()); }
};

template <class... A>
int launch(void (*kernel)(A...), const unsigned* grid, const unsigned* block, int backwards,
           int n_values, const int* sizes, void** values) {
    const int expected[] = {(int)sizeof(A)...};
    if (n_values != (int)sizeof...(A) || !std::equal(sizes, sizes + n_values, expected)) return 1;
    Launch<A...> launched;
    launched.kernel = kernel;
    launched.values = values;
    job = &launched;
    direction = backwards ? -1 : 1;
    run_grid(grid, block);
    return 0;
}

#define ENTRY(name)                                                                               \
    extern "C" int launch_##name(const unsigned* grid, const unsigned* block, int backwards,      \
                                 int n_values, const int* sizes, void** values) {                 \
        return launch(name, grid, block, backwards, n_values, sizes, values);                     \
    }
