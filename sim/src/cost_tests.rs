//! A step stays a step, a plain pass stays plain, and a roofline has its two slopes.

use super::*;
use proptest::prelude::*;

/// MLX 5120 -> 17408, 4 bit, M3 Max, in seconds (mlx PR 3863): flat from 10 to 32 rows, doubled at 33.
fn m3_max(steps: Option<Vec<usize>>) -> Staircase {
    let points = [(1, 0.129), (2, 0.129), (4, 0.165), (6, 0.263), (8, 0.323), (9, 0.405), (10, 0.51), (32, 0.51), (33, 1.0)];
    Staircase { name: "m3".into(), points: points.map(|(r, ms)| (r, ms * 1e-3)).into(), steps }.checked().unwrap()
}

#[test]
fn measured_points_come_back_and_plateaus_are_flat() {
    for steps in [None, Some(vec![10, 33])] {
        let table = m3_max(steps);
        table.points.iter().for_each(|&(rows, s)| assert_eq!(table.seconds(rows), Ok(s)));
        (10..=32).for_each(|rows| assert_eq!(table.seconds(rows), Ok(0.51e-3)));
    }
    assert!(matches!(m3_max(None).seconds(34), Err(SimError::Unmeasured { rows: 34, largest: 33, .. })));
}

#[test]
fn a_step_between_two_measured_points_is_paid_at_once() {
    let table = |steps| Staircase { name: "t".into(), points: vec![(1, 1.0), (8, 1.2), (24, 2.0)], steps };
    let stepped = table(Some(vec![9]));
    assert_eq!((stepped.seconds(8), stepped.seconds(9), stepped.seconds(23)), (Ok(1.2), Ok(2.0), Ok(2.0)));
    let late = table(Some(vec![17]));
    assert_eq!((late.seconds(16), late.seconds(17)), (Ok(1.2), Ok(2.0)));
    let unknown = table(None);
    assert_eq!((unknown.seconds(9), unknown.seconds(2)), (Ok(2.0), Ok(1.2)));
    let line = table(Some(vec![]));
    assert!((line.seconds(16).unwrap() - 1.6).abs() < 1e-12);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Sampling a staircase of tile 8 at any rows and naming its steps: every count within one tile of a measured point of the
    /// same tile costs what the staircase costs, so no interpolated value lies strictly between two stairs.
    #[test]
    fn interpolation_never_invents_a_height(heights in prop::collection::vec(0.1f64..1.0, 5), picks in prop::collection::vec(2usize..40, 1..8)) {
        let mut stairs = vec![0.0];
        heights.iter().for_each(|h| stairs.push(stairs[stairs.len() - 1] + h));
        let truth = |rows: usize| stairs[rows.div_ceil(8)];
        let mut rows: Vec<usize> = picks;
        rows.push(1);
        rows.push(40);
        rows.sort_unstable();
        rows.dedup();
        let points: Vec<_> = rows.iter().map(|&r| (r, truth(r))).collect();
        for steps in [None, Some(vec![9, 17, 25, 33])] {
            let table = Staircase { name: "t".into(), points: points.clone(), steps };
            for n in 1..=40 {
                let got = table.seconds(n).unwrap();
                prop_assert!(stairs.contains(&got), "{} rows cost {}", n, got);
                let tile_measured = rows.iter().any(|r| r.div_ceil(8) == n.div_ceil(8) && *r >= n);
                prop_assert!(!tile_measured || got >= truth(n), "{} rows cost {} below {}", n, got, truth(n));
            }
        }
    }
}

fn full(verify: VerifyCost) -> CostModel {
    CostModel {
        verify,
        draft: DraftCost { pass_s: 3e-3, step_s: 1e-3, node_s: 1e-5, by_nodes: vec![] },
        drafters: BTreeMap::new(),
        round_s: 2e-3,
        switch_s: 5e-3,
        context: ContextCost { token_s: 1e-7, row_token_s: 1e-8, draft_token_s: 2e-8 },
    }
    .checked()
    .unwrap()
}

#[test]
fn budget_zero_costs_exactly_the_plain_pass() {
    let cost = full(VerifyCost::Table(m3_max(None)));
    let plain = cost.price(0, 0).unwrap();
    assert_eq!(plain, Price { fixed_s: m3_max(None).seconds(1).unwrap(), context_s: 1e-7 + 1e-8 });
    let three = cost.price(3, 3).unwrap();
    assert!((three.fixed_s - (0.165e-3 + 3e-3 + 3e-3 + 3e-5 + 2e-3)).abs() < 1e-12);
    assert!((three.seconds(1000) - three.fixed_s - 1000.0 * (1e-7 + 4e-8 + 2e-8)).abs() < 1e-12);
}

#[test]
fn a_roofline_is_flat_then_climbs_by_tiles() {
    let roofline = Roofline {
        weight_bytes: 5.0e9,
        weights: 9.0e9,
        head_bytes: 0.2e9,
        head_weights: 1.0e9,
        bytes_per_s: 153e9,
        macs_per_s: 8e12,
        row_tile: 8,
        fixed_s: 0.0,
    };
    let cost = full(VerifyCost::Roofline(roofline));
    let v = |rows| cost.verify_s(rows).unwrap();
    assert!((v(1) - 5.2e9 / 153e9).abs() < 1e-12 && v(1) == v(8));
    assert!(v(9) == v(16) && v(33) > v(32));
    assert!((v(64) - 64.0 * 10.0e9 / 8e12).abs() < 1e-12);
}

#[test]
fn contradictory_tables_are_refused_with_a_sentence() {
    let table = |points: &[(usize, f64)]| {
        Staircase { name: "x".into(), points: points.into(), steps: None }.checked().unwrap_err().to_string()
    };
    assert!(table(&[]).contains("expected one row"));
    assert!(table(&[(2, 1.0)]).contains("expected one row"));
    assert!(table(&[(1, 1.0), (1, 1.0)]).contains("expected rising rows"));
    assert!(table(&[(1, 1.0), (2, 0.0)]).contains("2 rows take 0 s"));
    assert!(table(&[(1, f64::NAN)]).contains("1 rows take NaN s"));
    let negative = CostModel { round_s: -1.0, ..full(VerifyCost::Table(m3_max(None))) }.checked().unwrap_err().to_string();
    assert_eq!(negative, "seconds per round constant is -1, expected a finite number of at least 0");
}

#[test]
fn cost_files_round_trip_and_bad_ones_say_where() {
    // Dyadic seconds: serde_json reads other decimals within one unit in the last place only.
    let table = Staircase { name: "t".into(), points: vec![(1, 0.125), (9, 0.25)], steps: Some(vec![9]) };
    let cost = CostModel { round_s: 0.5, ..CostModel::from_table(table).unwrap() };
    assert_eq!(CostModel::from_json(&serde_json::to_string(&cost).unwrap()), Ok(cost));
    let short = r#"{"verify":{"table":{"name":"t","points":[[1,0.03],[17,0.04]]}},"round_s":0.002}"#;
    assert!((CostModel::from_json(short).unwrap().price(16, 0).unwrap().fixed_s - 0.042).abs() < 1e-12);
    let typo = CostModel::from_json(&short.replace("round_s", "round")).unwrap_err().to_string();
    assert!(typo.contains("unknown field `round`") && typo.contains("line 1"), "{typo}");
    assert!(CostModel::from_json(&short.replace("0.04]", "-1]")).unwrap_err().to_string().contains("17 rows take -1 s"));
}

#[test]
fn measured_passes_are_reduced_to_medians() {
    let passes = [(4, 3.0), (1, 1.0), (4, 2.0), (1, 9.0), (1, 1.2), (4, 50.0), (4, 2.5)];
    let table = Staircase::measured("runs", &passes).unwrap();
    assert_eq!(table.points, [(1, 1.2), (4, 2.75)]);
    assert!(Staircase::measured("runs", &[(2, 1.0)]).is_err());
}

#[test]
fn a_measured_drafter_is_a_line_between_its_points_and_unknown_drafters_are_refused() {
    let measured = DraftCost { by_nodes: vec![(3, 1e-3), (7, 3e-3)], ..DraftCost::default() };
    assert_eq!([1, 3, 5, 7, 32].map(|n| (1e4 * measured.seconds(n, n)).round()), [10.0, 10.0, 20.0, 30.0, 30.0]);
    let mut cost = CostModel::from_table(Staircase { name: "k".into(), points: vec![(1, 1.0), (33, 1.0)], steps: None }).unwrap();
    assert_eq!(cost.for_drafter("anybody").unwrap(), cost, "a file without drafters serves all");
    cost.drafters.insert("mtp".into(), measured);
    let read = CostModel::from_json(&serde_json::to_string(&cost).unwrap()).unwrap();
    assert_eq!(read.for_drafter("mtp").unwrap().price(5, 5).unwrap().fixed_s, 1.0 + 2e-3);
    assert!(read.for_drafter("weaver").unwrap_err().to_string().contains("the file has mtp (measure again"));
    cost.drafters.insert("bad".into(), DraftCost { by_nodes: vec![(3, 1.0), (3, 1.0)], ..DraftCost::default() });
    assert!(cost.checked().unwrap_err().to_string().contains("expected rising nodes"));
}
