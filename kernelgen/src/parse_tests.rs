use super::*;

fn parse(text: &str) -> Result<Shaders, ShaderError> {
    Shaders::parse(vec![("a.metal".into(), text.into())])
}

const GOOD: &str = "
#define WIDTH 32u
struct Inner { uint a; float b; };
struct Args { Inner at; uint n; }; // not a kernel void f()
struct Bits { ushort bits; };
kernel void scale(device const float* x [[buffer(0)]], device Bits* y [[buffer(2)]], constant Args& args [[buffer(1)]],
                  uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {}";

#[test]
fn roles_indices_constants_and_places_are_read() {
    let shaders = parse(GOOD).unwrap();
    let kernel = &shaders.kernels[0];
    assert_eq!((kernel.name.as_str(), kernel.arguments.len()), ("scale", 5));
    let input = Argument::Buffer { index: 0, name: "x".into(), element: "float".into(), role: Role::Input };
    let output = Argument::Buffer { index: 2, name: "y".into(), element: "Bits".into(), role: Role::Output };
    let constant = Argument::Constant { index: 1, name: "args".into(), of: FieldType::Struct("Args".into()) };
    assert_eq!(kernel.table(), [&input, &constant, &output]);
    assert_eq!(kernel.arguments[3], Argument::Thread { place: ThreadIndex::Group, width: 3 });
    assert_eq!(shaders.structs.len(), 2);
    assert_eq!(shaders.structs[1].fields[0].of, FieldType::Struct("Inner".into()));
    assert_eq!(shaders.sizes, [Size { name: "WIDTH".into(), value: 32 }]);
}

#[test]
fn what_leaves_the_conventions_is_named() {
    let cases = [
        ("kernel int f() {}", "`kernel void name(...)`"),
        ("kernel void f(device float* x [[buffer(1)]]) {}", "buffer indices 0, 1, 2"),
        ("kernel void f(device float* x [[buffer(0)]], device float* y [[buffer(0)]]) {}", "buffer indices 0, 1, 2"),
        ("kernel void f(float* x [[buffer(0)]]) {}", "`device const T*`"),
        ("kernel void f(constant Unknown& x [[buffer(0)]]) {}", "a declared struct"),
        ("kernel void f(device float* x) {}", "an attribute"),
        ("kernel void f(uint x [[threads_of_fate]]) {}", "a thread's place"),
        ("kernel void f(ushort x [[thread_index_in_simdgroup]]) {}", "uint, uint2 or uint3"),
        ("kernel void f() {} kernel void f() {}", "another name"),
    ];
    for (text, expected) in cases {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with("a.metal: kernel ") && error.contains(expected), "{text}: {error}");
    }
}
