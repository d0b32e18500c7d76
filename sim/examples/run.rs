fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let changes: Vec<(String, String)> = args[1..]
        .iter()
        .filter_map(|a| a.split_once('='))
        .map(|(a, b)| (a.into(), b.into()))
        .collect();
    let scenario = baton_sim::scenario::load(&args[0], &changes)?;
    let (outcome, speed) = baton_sim::outcome::simulate(&scenario)?;
    print!("{}", outcome.table());
    println!("{:?} {} events, {:?}", outcome.scheduler_counters, outcome.events, speed);
    Ok(())
}
